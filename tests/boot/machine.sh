# The machine of `make test-boot`, for boot.sh: qemu without the processor's help (so that it works wherever the tests do),
# reached by ssh through a port of the loopback. Sourced with $work and $root set.

# A port nobody has.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
key=$work/key
qemu=

ssh_options=(-i "$key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
    -o ConnectTimeout=20 -o ServerAliveInterval=10 -o ServerAliveCountMax=12 -o BatchMode=yes)

# Runs a command on the machine. What it prints on stdout and stderr comes here.
on_machine() { ssh "${ssh_options[@]}" -p "$port" root@127.0.0.1 "$@"; }
to_machine() { scp -q "${ssh_options[@]}" -P "$port" "${@:1:$#-1}" "root@127.0.0.1:${*: -1}"; }

# What the disk begins with: the root file system, and what the tests bring along.
make_disk() {
    rm -f "$key" "$key.pub" "$work/disk.raw"
    ssh-keygen -q -t ed25519 -N '' -f "$key"
    install -D -m 0600 "$key.pub" "$root/root/.ssh/authorized_keys"
    chmod 0700 "$root/root" "$root/root/.ssh"
    rm -rf "$root/root/images" "$root/root/kubectl"
    mkdir -p "$root/root/images"
    cp tests/out/images/{busybox,nginx}.tar "$root/root/images/"
    cp -L "$(scripts/kubectl.sh)" "$root/root/kubectl"
    mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/disk.raw" 6G
}

start_machine() {
    : >"$work/console.log"
    nice -n "${BOOT_NICE:-0}" qemu-system-x86_64 -accel tcg,thread=multi -machine q35 -cpu Westmere -smp 2 -m 3072 \
        -nodefaults -display none -no-user-config \
        -kernel "$root/vmlinuz" -initrd "$root/initrd.img" \
        -append "root=/dev/vda rw console=ttyS0 net.ifnames=0 systemd.show_status=1 panic=10 mitigations=off" \
        -drive "file=$work/disk.raw,if=virtio,format=raw,cache=unsafe" \
        -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net,romfile= \
        -device virtio-rng-pci -serial "file:$work/console.log" -monitor none >"$work/qemu.log" 2>&1 &
    qemu=$!
}

# Waits for ssh, at most SECONDS_FOR_BOOT: an emulated machine takes a minute or two to get there, more with other work.
wait_for_machine() {
    local deadline=$((SECONDS + ${SECONDS_FOR_BOOT:-600}))
    until on_machine true 2>/dev/null; do
        kill -0 "$qemu" 2>/dev/null || { echo "qemu ended:"; cat "$work/qemu.log"; return 1; } >&2
        if ((SECONDS > deadline)); then
            { echo "no ssh after ${SECONDS_FOR_BOOT:-600} s; the console's end:"; tail -n 30 "$work/console.log"; } >&2
            return 1
        fi
        sleep 3
    done
}

stop_machine() {
    [ -n "$qemu" ] || return 0
    kill "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    qemu=
}
