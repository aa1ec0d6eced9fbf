#!/usr/bin/env bash
# Measures the service proxy with many services beside the bare cost of its rules, with the release binary.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
cargo build --locked -q --workspace --bin bench-proxy
WINDLASS_BIN=$PWD/target/release/windlass exec target/debug/bench-proxy
