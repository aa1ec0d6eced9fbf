#!/usr/bin/env bash
# Installs what is missing for: build | run | test | package | boot | instructions | order. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?build, run, test, package, boot, instructions or order}

# package=command that proves it is there
case $what in
build) wanted=(gcc=cc binutils=nm python3=python3) ;;
run) wanted=(docker.io=dockerd iptables=iptables conntrack=conntrack busybox-static=busybox nginx-light=nginx curl=curl) ;;
test) wanted=(gcc=cc docker.io=dockerd iptables=iptables conntrack=conntrack iproute2=ip busybox-static=busybox nginx-light=nginx
    redis-server=redis-server docker-registry=docker-registry curl=curl python3=python3 util-linux=nsenter
    containernetworking-plugins=host-local faketime=faketime dbus-daemon=dbus-daemon chromium=chromium bsdutils=script openssl=openssl
    prometheus=promtool systemd=systemd-analyze nftables=nft bindfs=bindfs) ;;
package) wanted=(gcc=cc python3=python3 rpm=rpm dpkg-dev=dpkg-shlibdeps binutils=objdump xz-utils=xz debootstrap=debootstrap) ;;
boot) wanted=(docker.io=dockerd busybox-static=busybox nginx-light=nginx curl=curl python3=python3 debootstrap=debootstrap
    qemu-system-x86=qemu-system-x86_64 openssh-client=ssh e2fsprogs=mke2fs util-linux=nsenter) ;;
instructions | order) wanted=(gcc=cc valgrind=valgrind) ;;
*) echo "install.sh: $what is not one of build, run, test, package, boot, instructions, order" >&2; exit 2 ;;
esac

missing=()
for pair in "${wanted[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin:/usr/lib/cni command -v "${pair#*=}" >/dev/null || missing+=("${pair%%=*}")
done
# A docker client may be there without Debian's engine and the reverse; dockerd decides.
if ((${#missing[@]})); then
    if ((EUID != 0)); then
        echo "install.sh: ${missing[*]} must be installed, which needs root: run this as root, or install them yourself" >&2
        exit 1
    fi
    echo "installing ${missing[*]}"
    # The packages' daemons are only sources of binaries here: none may start.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ] && [[ ! -d /run/systemd/system ]]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "$what" = package ]; then
    for tool in cargo-deb cargo-generate-rpm cargo-cyclonedx; do scripts/cargo-tool.sh $tool >/dev/null; done
elif [ "$what" != build ]; then
    scripts/kubectl.sh >/dev/null
fi
if [ "$what" = test ]; then
    scripts/python.sh >/dev/null
    while read -r version; do scripts/kubectl.sh "$version" >/dev/null; done <tests/clients/kubectl-versions.txt
    scripts/cargo-tool.sh cargo-deny >/dev/null
fi
