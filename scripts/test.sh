#!/usr/bin/env bash
# Runs all tests, or with `quick` what a contributor runs before each commit: formatting, lints, and all tests that need no node
# and take no longer than some seconds. Starts an own Docker Engine when none answers, for the tests of single crates; the
# end-to-end tests (target `e2e`, a node each) and those of single pod features (target `pod_conformance`, one node for
# all) bring their own engine in network namespaces, and take it away again. Says at the end where the time went.
# usage: test.sh [quick] [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
export RUST_BACKTRACE=1
quick=
if [ "${1:-}" = quick ]; then quick=1; shift; fi

steps=
step() {
    local began=$SECONDS what=$1
    shift
    "$@"
    steps+=$(printf '  %4d s  %s' $((SECONDS - began)) "$what")$'\n'
}
images() {
    scripts/dockerd.sh
    tests/images/build.sh --all
    scripts/test-images.sh
}
# What was left out, and why, by the tests that did so.
skips=$(mktemp)
export WINDLASS_SKIPS=$skips
finish() {
    local code=$?
    printf '\nBefore the tests:\n%s' "$steps"
    if [ -s "$skips" ]; then
        sort -u "$skips" | sed 's/^/WARNING: left out: /'
    fi
    rm -f "$skips"
    exit $code
}
trap finish EXIT

step "formatting" cargo fmt --all --check
[ -n "$quick" ] || step "images of the tests" images
step "build, with lints" scripts/build-with-lints.sh
if [ -n "$quick" ]; then
    export TEST_QUICK=1
fi
step "tests" scripts/run-tests.py "${CARGO_TARGET_DIR:-target}/build.json" "$@"
