#!/usr/bin/env bash
# Fuzzes the readers of kernel state, of logs, of manifests and of what clients send to the API and the node, and the writer
# of volumes' files, for SECONDS_EACH (60), FUZZ_JOBS (1) side by side, starting from the golden files and from fuzz-targets/corpus.
# Works with the stable compiler: libFuzzer needs coverage counters only. usage: fuzz.sh [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-60}
jobs=${FUZZ_JOBS:-1}
running=()
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
triple=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$triple"
targets=${*:-$(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | tail -n +2)}
for target in $targets; do
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus"
  [ ! -d "fuzz-targets/corpus/$target" ] || cp "fuzz-targets/corpus/$target"/* "$corpus"
  case $target in
    bodies | manifests) cp proxy/tests/golden/*.yaml "$corpus" ;;
    kernel_state) cp proxy/tests/golden/*.save "$corpus" ;;
  esac
  log=target/fuzz/$target.log
  {
    target/fuzz/"$triple"/release/$target -max_total_time="$each" -max_len=8192 -print_final_stats=1 \
      -artifact_prefix=target/fuzz/$target- "$corpus" >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    echo "$target: clean; $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, $(grep -o 'cov: [0-9]*' "$log" | tail -n 1)"
  } &
  running+=("$!")
  # In the order of their starts, so that no failure is missed: they take the same time.
  if [ "${#running[@]}" -ge "$jobs" ]; then
    wait "${running[0]}"
    running=("${running[@]:1}")
  fi
done
for pid in "${running[@]}"; do wait "$pid"; done
