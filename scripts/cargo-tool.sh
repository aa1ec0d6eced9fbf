#!/usr/bin/env bash
# Prints the path of a cargo command in the version that this project was tried with; installs it when it is not there.
# Built without optimisation, which takes a third of the time, but for what is C: that compresses.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?a cargo command}
case $name in
cargo-audit) version=0.22.2 ;;
cargo-cyclonedx) version=0.5.9 ;;
cargo-deb) version=3.8.0 ;;
cargo-deny) version=0.20.2 ;;
cargo-generate-rpm) version=0.21.1 ;;
*) echo "cargo-tool.sh: no version of $name is written down here" >&2; exit 2 ;;
esac
bin=${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin
record=$bin/../.crates.toml
if ! { [ -x "$bin/$name" ] && grep -q "^\"$name $version " "$record"; }; then
    echo "installing $name $version (some minutes, once)" >&2
    CFLAGS=-O2 CARGO_PROFILE_DEV_DEBUG=0 cargo install "$name" --version "=$version" --locked --debug --quiet --root "$bin/.." >&2
fi
echo "$bin/$name"
