#!/usr/bin/env bash
# Measures the measuring: rounds beside bare reads of the same files, memory, and pages, with the release binary.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
WINDLASS_BIN=$PWD/target/release/windlass cargo run --locked -q -p windlass-tests --bin bench-cadvisor
