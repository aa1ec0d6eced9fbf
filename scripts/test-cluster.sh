#!/usr/bin/env bash
# Runs what a real Kubernetes control plane judges: the target `cluster`, the cases of pod conformance, the workloads, whose
# recordings UPDATE_RECORDED=1 makes again, and the end-to-end tests that ask nothing of the embedded API. Its programs (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) are
# in the directory that KUBEBUILDER_ASSETS names; without it nothing of this can run, which is a failure.
# usage: test-cluster.sh [all|cluster|differential|recordings|pod_conformance|workloads|e2e] [FILTER…]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin

if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
    echo "test-cluster.sh: KUBEBUILDER_ASSETS is not set; it names a directory with etcd, kube-apiserver, kube-controller-manager and kube-scheduler" >&2
    exit 2
fi

# End-to-end tests of the node alone, by module.
e2e=(churn crash eviction host_failures lifecycle network quickstart resources restart storage streams termination_messages usage volumes)

what=${1:-all}
(($#)) && shift
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
export RUST_BACKTRACE=1
# The build of the other tests, where there is one.
if [ -e "${CARGO_TARGET_DIR:-target}/debug/.with-lints" ]; then export RUSTC_WORKSPACE_WRAPPER=clippy-driver; fi
test() { cargo test --locked --workspace --no-fail-fast --test "$1" -- "${@:2}"; }

case $what in
all | cluster | differential | recordings | pod_conformance | workloads | e2e) ;;
*) echo "test-cluster.sh: $what is not one of all, cluster, differential, recordings, pod_conformance, workloads, e2e" >&2; exit 2 ;;
esac
failed=0
wants() { [ "$what" = all ] || [ "$what" = "$1" ]; }
# Each of the first and last starts a control plane of its own, so one at a time.
if wants cluster; then test cluster --test-threads=1 "$@" || failed=1; fi
if wants differential; then test differential --test-threads=1 "$@" || failed=1; fi
if wants recordings; then test recordings --test-threads=1 "$@" || failed=1; fi
if wants pod_conformance; then TEST_API=cluster test pod_conformance --test-threads="${TEST_THREADS:-2}" "$@" || failed=1; fi
if wants workloads; then TEST_API=cluster test workloads "$@" || failed=1; fi
if wants e2e; then
    # Two move the disk and the clock below the embedded API.
    (($#)) || set -- "${e2e[@]/%/::}" --skip a_full_disk_loses_nothing --skip the_clock_jumps_a_day_ahead_and_back
    TEST_API=cluster test e2e --test-threads=1 "$@" || failed=1
fi
exit $failed
