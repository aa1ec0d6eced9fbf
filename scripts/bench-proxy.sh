#!/usr/bin/env bash
# Measures the service proxy with many services beside the bare cost of its rules, with the release binary.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
WINDLASS_BIN=$PWD/target/release/windlass cargo run --locked -q -p windlass-tests --bin bench-proxy
