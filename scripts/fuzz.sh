#!/usr/bin/env bash
# Fuzzes the readers of kernel state, of logs and of manifests for SECONDS_EACH (60), starting from the golden files. Works
# with the stable compiler: libFuzzer needs coverage counters only.
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-60}
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
triple=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$triple"
for target in kernel_state log_entry manifests; do
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus"
  case $target in
    kernel_state) cp proxy/tests/golden/*.save "$corpus" ;;
    log_entry)
      printf '%s' '{"log":"a \u00e9\n","stream":"stdout","time":"2026-01-01T00:00:00.5Z"}' >"$corpus/json"
      printf '%s' '2026-01-01T00:00:00.5Z stderr P part' >"$corpus/cri" ;;
    manifests) cp proxy/tests/golden/*.yaml "$corpus" ;;
  esac
  target/fuzz/"$triple"/release/$target -max_total_time="$each" -max_len=8192 -artifact_prefix=target/fuzz/$target- "$corpus"
done
