#!/usr/bin/env bash
# Runs upstream's conformance tests on one node of the development build, or of WINDLASS_BIN, and joins what they report.
# usage: JUDGES=DIRECTORY [CONFORMANCE_PROCESSES=4] [CONFORMANCE_GROUPS=serial,…] conformance.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin RUSTC_WORKSPACE_WRAPPER=clippy-driver
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CONFORMANCE_REPORT=${CONFORMANCE_REPORT:-$target/conformance}
# The node has an engine of its own, which starts with these.
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
scripts/build-with-lints.sh
export WINDLASS_BIN=${WINDLASS_BIN:-$target/debug/windlass}
exec cargo test --locked --workspace --test judges -- --exact conformance --nocapture
