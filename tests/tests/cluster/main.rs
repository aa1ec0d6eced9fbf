//! What needs a real control plane: a node of Windlass in a cluster of kube-apiserver, its controllers and scheduler.
//!
//! Each test starts a control plane of its own, of the programs in the directory that `KUBEBUILDER_ASSETS` names; where that is
//! not set all of them are told as ignored. What can be asked of either API stands in `tests/e2e` and `tests/rows` instead,
//! which run on a real one with `TEST_API=cluster`: `make test-cluster` does all of that.

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
use windlass_tests::cluster::assets;

/// A test's name and itself.
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
