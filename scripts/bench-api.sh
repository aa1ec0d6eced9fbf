#!/usr/bin/env bash
# Measures the API server of the release binary, and the quick build after a change. An argument is the program's: `compile` alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
# Optimized, since it shares the cores with what it measures.
cargo build --locked -q --workspace --profile client --bin bench-api
if [ $# -gt 0 ]; then
    exec target/client/bench-api "$@"
fi
WINDLASS_BIN=$PWD/target/release/windlass target/client/bench-api
target/client/bench-api compile
