#!/usr/bin/env bash
# `make test-container`: the checks of `make test-boot` that need no kernel of their own, in a container that boots the same root
# with systemd as process 1, in seconds, on the kernel and the version of cgroups that this machine has. Where the machine does
# not let one boot it says so and ends with 77, which is no success. Arguments are the checks to run; none are all.
# systemd-nspawn is not what makes it: that has version 1 of cgroups read-only, so that no pod could run.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/target/boot
root=$work/root
tests/boot/root.sh "$root"

name=windlass-boot-$$
scratch=$(mktemp -d)
# A disk of its own, as a machine has: the usage of this one's would evict pods.
mount -t tmpfs -o mode=0755,size=4G tmpfs "$scratch"
leader=
hierarchies() { findmnt -n -l -o TARGET -t cgroup,cgroup2; }
cleanup() {
    local hierarchy dir _
    # With its process 1 all processes of the container end.
    [ -z "$leader" ] || kill -9 "$leader" 2>/dev/null || true
    for _ in $(seq 50); do
        [ -n "$leader" ] && kill -0 "$leader" 2>/dev/null || break
        sleep 0.1
    done
    for hierarchy in $(hierarchies); do
        for dir in $(find "$hierarchy/$name" -depth -type d 2>/dev/null); do
            # Processes that were killed may still be ending.
            for _ in $(seq 50); do rmdir "$dir" 2>/dev/null && break; sleep 0.1; done
        done
    done
    umount "$scratch"
    rmdir "$scratch"
}
trap cleanup EXIT
skip() {
    echo "skipped: $1" >&2
    tail -n 5 "$work/container.log" >&2 || true
    exit 77
}

# What it begins with, as a layer over the root, which stays as it is.
mkdir "$scratch"/{upper,work,root,docker}
guest=$scratch/upper/root
mkdir -p "$guest"/{images,assets} "$scratch/upper/etc/systemd/system"
cp tests/out/images/{busybox,nginx}.tar "$guest/images/"
cp -L "$(scripts/kubectl.sh)" "$guest/kubectl"
cp tests/boot/{guest.sh,pods.yaml,cluster.sh,cluster.yaml} "$guest/"
tests/boot/packages.sh "$guest"
# No network is coming that could be waited for, nobody logs in, and the kernel's devices and disk are not its own.
for unit in systemd-networkd systemd-networkd-wait-online systemd-udevd systemd-udev-trigger ssh systemd-remount-fs; do
    ln -s /dev/null "$scratch/upper/etc/systemd/system/$unit.service"
done
: >"$scratch/upper/etc/fstab"

# Runs as the first process of the container's namespaces. All capabilities and calls, as a machine has them: what is taken
# away below is the unit's own doing. Its cgroups are those below $name, in each hierarchy that the machine has. A network of its
# own: no rule and no port of this machine is touched.
begin() {
    local hierarchies=$1 hierarchy kind options device
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
    cd "$scratch/root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t tmpfs -o mode=0755 tmpfs dev
    mount -t tmpfs -o mode=0755 tmpfs run
    mkdir dev/pts dev/shm dev/mqueue
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for device in null zero full random urandom tty kmsg; do
        touch "dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    # Docker's layers need a file system that is no overlay.
    mkdir -p var/lib/docker
    mount --bind "$scratch/docker" var/lib/docker
    [ -z "$assets" ] || mount --bind "$assets" root/assets
    case $hierarchies in
    *" cgroup "*) mount -t tmpfs -o mode=0755 tmpfs sys/fs/cgroup ;;
    esac
    while read -r hierarchy kind options; do
        [ "$hierarchy" = /sys/fs/cgroup ] || mkdir -p ".$hierarchy"
        mount -t "$kind" ${options:+-o "$options"} "$kind" ".$hierarchy"
    done <<<"$hierarchies"
    mkdir -p .old
    pivot_root . .old
    # The machine's own files are out of sight.
    umount -l /.old
    cd /
    exec env -i container=windlass PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --show-status=no </dev/null
}

# The hierarchies of cgroups: where, of which kind, and of version 1 with which controllers.
mounted=$(findmnt -n -l -o TARGET,FSTYPE,FS-OPTIONS -t cgroup,cgroup2 | while read -r target kind options; do
    [ "$kind" = cgroup2 ] && options='' || options=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|xattr|release_agent=.*' | paste -sd,)
    echo "$target $kind $options"
done)
# What only a real control plane can show: see cluster.sh.
assets=${KUBEBUILDER_ASSETS:-}
export -f begin
export root scratch assets
(
    for hierarchy in $(hierarchies); do
        mkdir "$hierarchy/$name"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy/$name/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$name/$file"
        done
        echo "$BASHPID" >"$hierarchy/$name/cgroup.procs"
    done
    exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child=SIGKILL bash -euc 'begin "$1"' bash "$mounted"
) >"$work/container.log" 2>&1 &
outer=$!
for _ in $(seq 60); do
    kill -0 "$outer" 2>/dev/null || skip "this machine lets no container boot:"
    leader=$(pgrep -P "$outer" || true)
    if [ -n "$leader" ] && [ "$(cat "/proc/$leader/comm" 2>/dev/null)" = systemd ] &&
        nsenter -t "$leader" -m -p -n -u -i -C systemctl is-active -q multi-user.target 2>/dev/null; then break; fi
    sleep 1
done
inside() { nsenter -t "$leader" -m -p -n -u -i -C -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"; }
inside systemctl is-active -q multi-user.target || skip "systemd does not come up in a container here:"
# An interface that leads nowhere gives the node its address.
inside ip link set lo up
inside ip link add nowhere type veth peer name beyond
inside ip address add 192.0.2.10/24 dev nowhere
inside ip link set beyond up
inside ip link set nowhere up
inside ip route add default via 192.0.2.1
for _ in $(seq 30); do inside docker info >/dev/null 2>&1 && break; sleep 1; done
inside docker info >/dev/null 2>&1 || { inside journalctl -u docker --no-pager -n 5 >>"$work/container.log"; skip "Docker does not run in a container here:"; }
echo "== booted in a container: $(inside systemctl --version | head -n 1), cgroups $(stat -fc %T /sys/fs/cgroup)"
if (($# == 0)); then
    set -- installed pods restarts reloads hangs upgraded quiet_journal verbs verbs_without_docker packages_without_docker
    if [ -n "$assets" ]; then
        set -- "$@" joined verbs_without_api packages_without_api left
    else
        echo "== skipped: verbs in a real cluster, since KUBEBUILDER_ASSETS names no directory of its programs" >&2
    fi
    set -- "$@" removed purged by_rpm
fi
for check in "$@"; do
    echo "== $check"
    inside /root/guest.sh "$check"
done
echo "$# passed, 0 failed"
