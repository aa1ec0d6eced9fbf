#!/usr/bin/env bash
# Measures the release binary with the benchmark `bench-NAME`, on a Docker Engine of the benchmark's own.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?agent, cadvisor or node}
export PATH=$PATH:/usr/sbin:/sbin
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
WINDLASS_BIN=$PWD/target/release/windlass cargo run --locked -q -p windlass-tests --bin "bench-$name"
