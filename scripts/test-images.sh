#!/usr/bin/env bash
# Saves the sample images, or those named, as files that each test's own Docker Engine loads.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p tests/out/images
(($#)) || set -- busybox nginx redis curl
for name in "$@"; do
    id=$(docker image inspect -f '{{.Id}}' "windlass/$name:1")
    if [ "$(cat "tests/out/images/$name.id" 2>/dev/null || true)" != "$id" ] || [ ! -e "tests/out/images/$name.tar" ]; then
        docker save -o "tests/out/images/$name.tar" "windlass/$name:1"
        echo "$id" >"tests/out/images/$name.id"
    fi
done
