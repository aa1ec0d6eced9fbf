#!/usr/bin/env bash
# `make test-nspawn`: the checks of `make test-boot` that need no kernel of their own, in a container that boots the same root with
# systemd as process 1, in seconds, on the kernel and the version of cgroups that this machine has. Where the machine does not
# let a container boot it says so and ends with 77, which is no success.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/target/boot
root=$work/root
deb=$(find dist -name '*.deb' 2>/dev/null | head -n 1)
[ -n "$deb" ] || { echo "nspawn.sh: no package in dist/; make package makes it" >&2; exit 1; }
tests/boot/root.sh "$root"

scratch=$(mktemp -d -p /var/tmp)
nspawn=
cleanup() {
    [ -z "$nspawn" ] || { kill "$nspawn" 2>/dev/null || true; wait "$nspawn" 2>/dev/null || true; }
    umount "$scratch/root" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT
mkdir "$scratch"/{upper,work,root,docker}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
mkdir -p "$scratch/root/root/images"
cp tests/out/images/{busybox,nginx}.tar "$scratch/root/root/images/"
cp -L "$(scripts/kubectl.sh)" "$scratch/root/root/kubectl"
cp tests/boot/guest.sh tests/boot/pods.yaml "$scratch/root/root/"
cp "$deb" "$scratch/root/root/windlass.deb"
# No network is coming that could be waited for.
ln -s /dev/null "$scratch/root/etc/systemd/system/systemd-networkd-wait-online.service"

# All capabilities and calls, as a machine has them: what is taken away below is the unit's own doing. Docker's layers need a
# file system that is no overlay. A network of its own: no rule and no port of this machine is touched.
SYSTEMD_SECCOMP=0 systemd-nspawn --quiet -D "$scratch/root" --machine="boot-$$" --register=no --keep-unit \
    --private-network --capability=all --kill-signal=SIGRTMIN+4 \
    --bind="$scratch/docker:/var/lib/docker" --bind=/dev/kmsg \
    --boot </dev/null >"$work/nspawn.log" 2>&1 &
nspawn=$!
leader=
for _ in $(seq 60); do
    kill -0 "$nspawn" 2>/dev/null || { echo "skipped: this machine lets no container boot:"; tail -n 3 "$work/nspawn.log"; nspawn=; exit 77; }
    leader=$(pgrep -P "$nspawn" || true)
    if [ -n "$leader" ] && nsenter -t "$leader" -m -p -n -u -i -C systemctl is-active -q multi-user.target 2>/dev/null; then break; fi
    sleep 1
done
inside() { nsenter -t "$leader" -m -p -n -u -i -C -r -w env -i PATH="$PATH" HOME=/root LC_ALL=C "$@"; }
# An interface that leads nowhere gives the node its address.
inside ip link add nowhere type veth peer name beyond
inside ip address add 192.0.2.10/24 dev nowhere
inside ip link set beyond up
inside ip link set nowhere up
inside ip route add default via 192.0.2.1
for _ in $(seq 30); do inside docker info >/dev/null 2>&1 && break; sleep 1; done
inside docker info >/dev/null 2>&1 || { echo "skipped: Docker does not run in a container here:"; inside journalctl -u docker --no-pager -n 5; exit 77; }
echo "== booted in a container: $(inside systemctl --version | head -n 1), cgroups $(stat -fc %T /sys/fs/cgroup)"
if (($# == 0)); then
    # With cgroups of version 1 a container has them read-only, and what it made there would be beside the machine's own pods.
    if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
        set -- installed pods figures reloads_units restarts reloads hangs upgraded quiet_journal removed purged
    else
        echo "== cgroups v1: no pods in a container; the unit, its reload and the package alone"
        set -- installed reloads quiet_journal purged
    fi
fi
for check in "$@"; do
    echo "== $check"
    inside /root/guest.sh "$check"
done
echo "$# passed, 0 failed"
