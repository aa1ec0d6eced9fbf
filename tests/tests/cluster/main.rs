//! Tests that need a real control plane: a Windlass node in a cluster of kube-apiserver, kube-controller-manager and
//! kube-scheduler.
//!
//! Each test starts its own control plane from the programs in `KUBEBUILDER_ASSETS`; without that variable all of them
//! are ignored. Tests that run against either API are in `tests/e2e` and `tests/pod_conformance`; with
//! `TEST_API=cluster` they run on a real control plane. `make test-cluster` does both.

mod certificates;
mod fail_over;
mod faults;
mod faulty_proxy;
mod join;
mod joined_node;
mod node;
mod workload;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use windlass_tests::{cluster::assets, skip};

/// The name and function of a test.
type Test = (&'static str, fn());

/// The tests of a file, under their own names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use tests;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let skipped = assets().is_none();
    if skipped && !arguments.list {
        skip("control-plane", "KUBEBUILDER_ASSETS is not set");
    }
    let areas = [
        ("certificates", certificates::TESTS),
        ("fail_over", fail_over::TESTS),
        ("faults", faults::TESTS),
        ("join", join::TESTS),
        ("joined_node", joined_node::TESTS),
        ("node", node::TESTS),
    ];
    let trial = |area: &str, (name, test): Test| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(format!("{area}::{name}"), run).with_ignored_flag(skipped)
    };
    let trials = areas.into_iter().flat_map(|(area, tests)| tests.iter().map(move |test| trial(area, *test)));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
