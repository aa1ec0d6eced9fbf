#!/usr/bin/env bash
# Makes the root file system of the machine that `make test-boot` boots: Debian 12 by debootstrap, with systemd, Debian's
# cloud kernel and Docker, into FOLDER. It is kept: a second run with the same packages does nothing.
set -euo pipefail
root=${1:?a directory}
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
packages=(systemd-sysv dbus udev linux-image-cloud-amd64 initramfs-tools kmod zstd
    docker.io apparmor iptables conntrack iproute2 procps curl ca-certificates openssh-server rpm)
stamp=$(printf '%s\n' "${packages[@]}" | cat - "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
[ "$(cat "$root.stamp" 2>/dev/null || true)" = "$stamp" ] && exit 0

rm -rf "$root" "$root.stamp"
mkdir -p "$root"
# The mirror that this machine itself installs from.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(IDENTIFIER)' 'Codename: bookworm' 'Component: main' |
    sed -n 's/ Packages$//p' | head -n 1)
echo "root: debootstrap (a few minutes)"
debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "${mirror:?apt knows no mirror of Debian 12}" \
    >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }

# The packages' daemons must not start on the machine that only builds.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
echo "root: ${packages[*]}"
chroot "$root" apt-get update -qq >>"$root.log" 2>&1
chroot "$root" apt-get install -y -qq --no-install-recommends "${packages[@]}" >>"$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
chroot "$root" apt-get clean
umount "$root/proc"
trap - EXIT
rm "$root/usr/sbin/policy-rc.d"
rm -rf "$root"/var/lib/apt/lists/*

# A name, an address from the emulator, a key for the tests to come in with, and nothing that waits for a person.
echo boot >"$root/etc/hostname"
printf '127.0.0.1 localhost boot\n' >"$root/etc/hosts"
printf '[Match]\nType=ether\nName=e*\n[Network]\nDHCP=ipv4\n' >"$root/etc/systemd/network/80-ether.network"
chroot "$root" systemctl enable -q systemd-networkd.service ssh.service
printf '/dev/vda / ext4 defaults 0 1\n' >"$root/etc/fstab"
printf 'PermitRootLogin prohibit-password\nUseDNS no\n' >"$root/etc/ssh/sshd_config.d/boot.conf"
mkdir -p "$root/var/log/journal"
echo "$stamp" >"$root.stamp"
