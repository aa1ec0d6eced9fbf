#!/usr/bin/env bash
# Prints the directory of the Python clients of tests/clients/requirements.txt; installs them under target/tools when they
# are missing or of other versions.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/tools/python
wanted=tests/clients/requirements.txt

if ! cmp -s $wanted "$folder/requirements.txt"; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        apt-get install -y -qq --no-install-recommends python3-pip >&2
    fi
    mkdir -p target/tools
    scratch=$(mktemp -d -p target/tools)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$scratch/python" -r $wanted >&2
    cp $wanted "$scratch/python/requirements.txt"
    rm -rf "$folder"
    mv "$scratch/python" "$folder"
fi
echo "$folder"
