#!/usr/bin/env bash
# Makes the sample images from Debian's own binaries, without any registry:
#   windlass/busybox:1   static busybox
#   windlass/nginx:1     nginx that answers / with the pod's host name
#   windlass/redis:1     redis-server            (only with --all, as the tests need it)
#   windlass/curl:1      curl, for HTTPS         (likewise)
# An image whose inputs did not change is left alone. DOCKER_HOST is honoured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PATH=$PATH:/usr/sbin:/sbin

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Copies programs with the shared libraries that they need into a root file system.
with_libraries() {
    local root=$1 program
    shift
    for program in "$@"; do
        install -D -m 0755 "$program" "$root$program"
        ldd "$program" | grep -oE '/[^ ]+' | while read -r library; do
            [ -e "$root$library" ] || install -D -m 0755 "$library" "$root$library"
        done
    done
}

with_busybox() {
    local root=$1
    mkdir -p "$root"/{bin,tmp,etc,root,proc,sys,dev,var/run,run}
    chmod 1777 "$root/tmp"
    install -m 0755 "$(command -v busybox)" "$root/bin/busybox"
    "$root/bin/busybox" --list | while read -r applet; do
        [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nnobody:x:65534:65534::/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n' >"$root/etc/group"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
}

# make NAME INPUTS... : runs root_NAME into a directory and imports it, if the inputs changed.
make_image() {
    local name=$1 tag=windlass/$1:1 root=$scratch/$1 digest
    shift
    digest=$(cat build.sh "$@" | sha256sum | cut -c1-16)
    if [ "$(docker image inspect -f '{{index .Config.Labels "io.windlass.sample"}}' "$tag" 2>/dev/null || true)" = "$digest" ]; then
        return
    fi
    mkdir -p "$root"
    "root_$name" "$root"
    local changes=(--change 'ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin' --change "LABEL io.windlass.sample=$digest")
    while read -r change; do changes+=(--change "$change"); done < <("config_$name")
    tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c . | docker import "${changes[@]}" - "$tag" >/dev/null
    echo "made $tag"
}

root_busybox() { with_busybox "$1"; }
config_busybox() { echo 'CMD ["sh"]'; }

root_nginx() {
    local root=$1
    with_busybox "$root"
    with_libraries "$root" "$(command -v nginx)"
    mkdir -p "$root"/{etc/nginx,var/log/nginx,var/lib/nginx,usr/share/nginx/html}
    ln -s /dev/stdout "$root/var/log/nginx/access.log"
    ln -s /dev/stderr "$root/var/log/nginx/error.log"
    cp nginx.conf "$root/etc/nginx/nginx.conf"
    echo 'types { text/html html; text/plain txt; }' >"$root/etc/nginx/mime.types"
    echo 'a page' >"$root/usr/share/nginx/html/index.html"
}
config_nginx() { printf '%s\n' 'CMD ["nginx", "-g", "daemon off;"]' 'EXPOSE 80'; }

root_redis() {
    with_busybox "$1"
    with_libraries "$1" "$(readlink -f "$(command -v redis-server)")"
    mkdir -p "$1/data"
    ln -sf "$(readlink -f "$(command -v redis-server)")" "$1/bin/redis-server"
}
config_redis() { printf "%s\n" 'CMD ["redis-server", "--protected-mode", "no", "--save", ""]' "WORKDIR /data" "EXPOSE 6379"; }

root_curl() {
    with_busybox "$1"
    with_libraries "$1" "$(command -v curl)"
}
config_curl() { echo 'CMD ["sh"]'; }

make_image busybox "$(command -v busybox)"
make_image nginx "$(command -v busybox)" "$(command -v nginx)" nginx.conf
if [ "${1:-}" = --all ]; then
    make_image redis "$(command -v busybox)" "$(readlink -f "$(command -v redis-server)")"
    make_image curl "$(command -v busybox)" "$(command -v curl)"
fi
