#!/usr/bin/env bash
# Counts the instructions of the rule builder under valgrind; fails where one is above its limit.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.0
tools=$PWD/target/tools
if ! [ -x "$tools/bin/gungraun-runner" ]; then
  cargo install gungraun-runner --version "$version" --locked --root "$tools"
fi
export GUNGRAUN_RUNNER=$tools/bin/gungraun-runner
cargo bench --manifest-path proxy/benches/instructions/Cargo.toml --target-dir target/instructions --bench rules
