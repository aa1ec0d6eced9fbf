#!/usr/bin/env bash
# Prints the directory of the official Python client of Kubernetes; installs it under target/tools when it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/tools/python

if [ ! -d "$folder/kubernetes" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        apt-get install -y -qq --no-install-recommends python3-pip >&2
    fi
    mkdir -p target/tools
    scratch=$(mktemp -d -p target/tools)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$scratch/python" 'kubernetes==36.*' >&2
    mv "$scratch/python" "$folder"
fi
echo "$folder"
