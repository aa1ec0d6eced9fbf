#!/usr/bin/env bash
# A node under churn and random faults, by the release binary, on a Docker Engine of the soak's own.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
WINDLASS_BIN=$PWD/target/release/windlass exec cargo run --locked -q -p windlass-tests --bin soak
