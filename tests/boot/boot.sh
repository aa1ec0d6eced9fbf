#!/usr/bin/env bash
# `make test-boot`: boots Debian 12 with systemd as process 1 and cgroup v2 in a machine of its own, installs dist/*.deb there,
# and checks what a node is for: see guest.sh. Takes 15 to 25 minutes, since the processor is emulated.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/target/boot
root=$work/root
mkdir -p "$work"
rm -rf "$work/packages"
mkdir -p "$work/packages"
tests/boot/packages.sh "$work/packages"
passed=0

step() { echo "== $(printf '%3d:%02d' $((SECONDS / 60)) $((SECONDS % 60))) $*"; }
check() {
    on_machine /root/guest.sh "$@"
    passed=$((passed + 1))
}

tests/boot/root.sh "$root"
. tests/boot/machine.sh
trap stop_machine EXIT
step "a disk with Debian, Docker, kubectl and images"
make_disk
step "boot (console: target/boot/console.log)"
start_machine
wait_for_machine
to_machine tests/boot/guest.sh tests/boot/pods.yaml /root/
to_machine "$work"/packages/* /root/
check booted
step "the package is installed"
check installed
step "pods, volumes, ports, exec and logs under the unit's restrictions"
check pods
step "figures of cgroup v2"
check figures
step "systemctl daemon-reload"
check reloads_units
step "systemctl restart and kill -9"
check restarts
step "systemctl reload"
check reloads
step "the watchdog"
check hangs
step "an upgrade in place"
check upgraded
check quiet_journal
step "reboot"
check asks_for_time
on_machine 'cat /proc/sys/kernel/random/boot_id' >"$work/boot_id"
on_machine 'systemctl reboot' || true
until id=$(on_machine 'cat /proc/sys/kernel/random/boot_id' 2>/dev/null) && [ "$id" != "$(cat "$work/boot_id")" ]; do
    kill -0 "$qemu" || { echo "qemu ended: $(cat "$work/qemu.log")" >&2; exit 1; }
    ((SECONDS < 3600)) || { echo "no second boot; the console's end:" >&2; tail -n 30 "$work/console.log" >&2; exit 1; }
    sleep 3
done
step "what comes back"
check came_back
check quiet_journal
step "down, down --purge; the same and the packages' verbs without Docker"
check verbs
check verbs_without_docker
check packages_without_docker
step "removal and purge"
check removed
check purged
step "the RPM package"
check by_rpm
on_machine 'systemctl poweroff' || true
for _ in $(seq 120); do kill -0 "$qemu" 2>/dev/null || break; sleep 1; done
! kill -0 "$qemu" 2>/dev/null || { echo "the machine does not shut down" >&2; exit 1; }
step "done"
echo "$passed passed, 0 failed"
