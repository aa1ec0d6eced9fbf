#!/usr/bin/env bash
# What runs every night: all tests with every fault and nothing left out, against a real control plane too, in a machine that
# boots, and the fuzzers for ten minutes each. Everything runs, whatever has failed before; the list at the end says what has.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
    echo "test-nightly.sh: KUBEBUILDER_ASSETS must name a directory with etcd, kube-apiserver, kube-controller-manager and kube-scheduler" >&2
    exit 2
fi
# Only what is named here may be left out at night.
export WINDLASS_ALLOW_SKIP=${WINDLASS_ALLOW_SKIP:-go-client,judges,sample-apiserver,upstream-tree,apparmor}
export FAULTS=${FAULTS:-all} MODEL_CASES=${MODEL_CASES:-60} WINDLASS_KILLS=${WINDLASS_KILLS:-40} DOCKER_FAULTS=${DOCKER_FAULTS:-40}
export SECONDS_EACH=${SECONDS_EACH:-600} FUZZ_JOBS=${FUZZ_JOBS:-2} SOAK_MINUTES=${SOAK_MINUTES:-60}
results=
failed=0
tier() {
    local began=$SECONDS word=passed
    make --no-print-directory "$@" || { word=FAILED; failed=$((failed + 1)); }
    results+=$(printf '%-7s %5d s  make %s' "$word" $((SECONDS - began)) "$*")$'\n'
}
tier test
tier test-cluster
# Their package is the program as it is shipped.
tier package
tier test-boot
tier storm
tier soak
tier fuzz
printf '\n%s' "$results"
exit $((failed > 0))
