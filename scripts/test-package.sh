#!/usr/bin/env bash
# Looks at the packages in dist/ and takes the Debian one through its life in a root of its own, without systemd and without a
# network: installed, upgraded with changed settings, removed, purged. What it does with a running node is for test-boot.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/target/boot/root
mkdir -p target/package
deb=$(realpath dist/*.deb)
rpm=$(realpath dist/*.rpm)
passed=0
fail() { echo "FAILED: $*" >&2; exit 1; }
ok() { passed=$((passed + 1)); echo "ok: $*"; }

# The same files in all three, where each kind of system looks for them.
listed() { sed -E 's,^\./,/,; s,/$,,' | grep -E '^/(etc|usr|lib)/' | grep -vE '/$' | sort; }
in_deb=$(dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | listed)
in_rpm=$(rpm -qp --list "$rpm" | listed)
for path in /usr/bin/windlass /etc/windlass/config.yaml /usr/lib/sysusers.d/windlass.conf /usr/lib/tmpfiles.d/windlass.conf \
    /usr/share/bash-completion/completions/windlass /usr/share/fish/vendor_completions.d/windlass.fish \
    /usr/share/man/man1/windlass.1.gz /usr/share/doc/windlass/NOTICE.gz /usr/share/doc/windlass/windlass.cdx.json.gz; do
    grep -qx "$path" <<<"$in_deb" || fail "$path is not in the Debian package"
    grep -qx "$path" <<<"$in_rpm" || fail "$path is not in the RPM package"
done
grep -qx /lib/systemd/system/windlass.service <<<"$in_deb" || fail "the unit is not in the Debian package"
grep -qx /usr/lib/systemd/system/windlass.service <<<"$in_rpm" || fail "the unit is not in the RPM package"
ok "units, settings, completions, manual, licences and bill of materials are in both packages"

[ "$(dpkg-deb --fsys-tarfile "$deb" | tar -tv | awk '$2 != "root/root" && $2 != "0/0"')" = "" ] || fail "files of somebody else"
[ "$(dpkg-deb --fsys-tarfile "$deb" | tar -tv | awk '{print $1}' | grep -c '^.....w..w.\|^-..s')" = 0 ] || fail "files for all to write"
grep -qx /etc/windlass/config.yaml <(dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles) || fail "config.yaml is no conffile"
[ "$(rpm -qp --configfiles "$rpm")" = /etc/windlass/config.yaml ] || fail "config.yaml is no configuration in the RPM package"
for script in postinst prerm postrm; do
    dpkg-deb --ctrl-tarfile "$deb" | tar -xO "./$script" | sh -n || fail "$script cannot be read"
done
depends=$(dpkg-deb -f "$deb" Depends)
for wanted in 'docker.io | docker-ce' iptables conntrack libc6; do
    [[ $depends == *"$wanted"* ]] || fail "does not depend on $wanted: $depends"
done
ok "owners, modes, conffiles, scripts and dependencies"
(cd dist && sha256sum --quiet -c SHA256SUMS) || fail "the checksums are of other files"
python3 - dist/*.cdx.json <<'PYTHON' || fail "the bill of materials"
import json, sys
bill = json.load(open(sys.argv[1]))
names = {component["name"] for component in bill["components"]}
assert bill["bomFormat"] == "CycloneDX" and len(names) > 200, len(names)
assert {"tokio", "rustls", "kube", "windlass-agent"} <= names, names
assert all(component.get("licenses") for component in bill["components"]), "a component without a licence"
assert "file:///windlass/" in json.dumps(bill) and "file:///home" not in json.dumps(bill) and "file:///root" not in json.dumps(bill)
PYTHON
ok "checksums and bill of materials"

# Hardening that the linker gives: addresses at random, tables that cannot be written, a stack that cannot be run.
dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/bin/windlass >target/package/looked-at
elf=$(readelf -hldW target/package/looked-at)
for mark in 'DYN (Position-Independent Executable' GNU_RELRO 'NOW'; do
    grep -F "$mark" <<<"$elf" >/dev/null || fail "the program is not hardened: no $mark"
done
grep GNU_STACK <<<"$elf" | grep -v RWE >/dev/null || fail "the program's stack can be run"
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$elf" | sort | xargs)
# Of these alone; whether the loader is named among them depends on the linker.
for library in $needed; do
    case $library in ld-linux-x86-64.so.2 | libc.so.6 | libgcc_s.so.1 | libm.so.6) ;; *) fail "the program links $library" ;; esac
done
[[ " $needed " == *" libc.so.6 "* ]] || fail "the program links $needed"
rm target/package/looked-at
ok "position-independent, read-only relocations, no running stack; links $needed"

tests/boot/root.sh "$root"
scratch=$(mktemp -d)
mkdir "$scratch"/{upper,work,merged}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/merged"
trap 'umount "$scratch/merged"; rm -rf "$scratch"' EXIT
cp "$deb" "$scratch/merged/one.deb"
# The same package as its next version.
dpkg-deb -R "$deb" "$scratch/two"
sed -i 's/^Version: .*/Version: 99.0/' "$scratch/two/DEBIAN/control"
echo '# a comment of the new version' >>"$scratch/two/etc/windlass/config.yaml"
dpkg-deb -Zgzip -z1 --root-owner-group -b "$scratch/two" "$scratch/merged/two.deb" >/dev/null

# A network and mounts of its own: nothing of this machine can be touched by a script that goes wrong.
inside() { DEBIAN_FRONTEND=noninteractive unshare --net --mount --pid --fork --mount-proc="$scratch/merged/proc" chroot "$scratch/merged" "$@"; }
there() { [ -e "$scratch/merged$1" ] || [ -L "$scratch/merged$1" ]; }

inside dpkg -i /one.deb >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg -i"; }
inside windlass --version >/dev/null || fail "the program does not run"
inside windlass config check /etc/windlass/config.yaml | grep 'can be used' >/dev/null || fail "the shipped settings are refused"
inside getent group windlass >/dev/null || fail "no group"
[ "$(stat -c %a "$scratch/merged/etc/windlass")" = 2750 ] || fail "/etc/windlass has mode $(stat -c %a "$scratch/merged/etc/windlass")"
there /etc/systemd/system/multi-user.target.wants/windlass.service || fail "the unit is not enabled"
! there /etc/systemd/system/multi-user.target.wants/windlass-proxy.service || fail "the proxy's unit is enabled"
ok "installed"

inside systemctl disable windlass.service >/dev/null 2>&1
echo 'maxPods: 50' >>"$scratch/merged/etc/windlass/config.yaml"
inside install -d -m 0700 /var/lib/windlass
echo 1 >"$scratch/merged/var/lib/windlass/windlass-data"
echo objects >"$scratch/merged/var/lib/windlass/store"
inside dpkg --force-confold -i /two.deb >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "the upgrade"; }
grep -q 'maxPods: 50' "$scratch/merged/etc/windlass/config.yaml" || fail "an upgrade took the administrator's settings away"
! there /etc/systemd/system/multi-user.target.wants/windlass.service || fail "an upgrade enables what was disabled"
ok "an upgrade keeps settings, data, and what an administrator disabled"
inside dpkg --force-confold -i /one.deb >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "the downgrade"; }
grep -q objects "$scratch/merged/var/lib/windlass/store" || fail "a downgrade took data away"
ok "a downgrade keeps data"

inside dpkg -r windlass >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg -r"; }
! there /usr/bin/windlass && there /var/lib/windlass/store && there /etc/windlass/config.yaml || fail "a removal left the wrong things"
there /var/lib/windlass-removed/windlass || fail "nothing is kept for a later purge"
inside dpkg -i /one.deb >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "installed again"; }
! there /var/lib/windlass-removed || fail "what was kept for a purge stays beside the program"
ok "a removal leaves data and settings, and can be taken back"

inside dpkg -P windlass >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg -P"; }
left=$(find "$scratch/merged" -xdev \( -path "$scratch/merged/proc" -o -path '*/var/log/*.log' -o -path '*/var/lib/dpkg' \
    -o -path "$scratch/merged/root" \) -prune -o -name '*windlass*' -print)
[ -z "$left" ] || { cat "$scratch/log"; fail "a purge leaves $left"; }
! inside getent group windlass >/dev/null || fail "a purge leaves the group"
ok "a purge leaves nothing"
echo "$passed passed, 0 failed"
