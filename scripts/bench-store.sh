#!/usr/bin/env bash
# Measures the store's engines beside the disk's own speed, in target/, or in the directory that is given.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --manifest-path store/benches/engines/Cargo.toml --target-dir target/bench-store
exec target/bench-store/release/bench-store "${1:-target/bench-store/data}"
