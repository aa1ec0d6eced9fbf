#!/usr/bin/env bash
# Runs all tests. Starts an own Docker Engine when none answers, for the tests of single crates; the
# end-to-end tests (target `e2e`, a node each) and those of single pod features (target `pod_conformance`, one node for
# all) bring their own engine in network namespaces, and take it away again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin

scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh

cargo build --locked --workspace --all-targets
# One test at a time in the crates that drive the kernel and Docker: they share two cores.
export RUST_BACKTRACE=1
exec cargo test --locked --workspace --no-fail-fast -- --test-threads="${TEST_THREADS:-2}"
