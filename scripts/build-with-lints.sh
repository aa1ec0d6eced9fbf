#!/usr/bin/env bash
# Builds everything that tests run, with clippy as the compiler: lints and programs come of one build, where `cargo clippy` would
# compile all dependencies and all of ours once more. Any warning fails it. What cargo says of the programs is left in
# target/build.json, for scripts/run-tests.py. More arguments are cargo's.
#
# cargo keeps what another compiler has built apart: whoever runs cargo by hand shares this build with
#   export RUSTC_WORKSPACE_WRAPPER=clippy-driver
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
folder=${CARGO_TARGET_DIR:-target}
mkdir -p "$folder"
cargo build --locked --workspace --all-targets --message-format=json "$@" | python3 -c '
import json, sys
wrong = 0
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("reason") == "compiler-message" and message["message"]["level"] in ("warning", "error"):
        wrong += 1
        sys.stderr.write(message["message"]["rendered"])
    elif message.get("reason") == "compiler-artifact":
        sys.stdout.write(line)
if wrong:
    sys.exit(f"build-with-lints.sh: {wrong} warnings and errors; none may be left")
' >"$folder/build.json"
# Told to `make run`: what is built this way is not built again.
touch "$folder/debug/.with-lints"
