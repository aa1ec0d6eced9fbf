#!/usr/bin/env bash
# Runs one pod with every fault at every call that it makes to Docker; FAULTS_PART=2/8 is the second eighth of them.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin

scripts/dockerd.sh
tests/images/build.sh
scripts/test-images.sh
cargo build --locked --workspace
exec cargo test --locked --workspace --test e2e -- --ignored --nocapture every_call_meets_every_fault
