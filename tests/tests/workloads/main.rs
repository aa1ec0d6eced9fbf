//! Workloads on a node, typed as users type them: kubectl, real pods, and everything that the controllers say about it
//! (columns, conditions, events). What they say is compared with `recorded/`, which was recorded with the same node under
//! the real kube-controller-manager and kube-scheduler:
//! `TEST_API=cluster UPDATE_RECORDED=1 KUBEBUILDER_ASSETS=… cargo test -p windlass-tests --test workloads`.
//!
//! All cases share one running node; each has a namespace of its own.

mod autoscalers;
mod case;
mod daemon_sets;
mod deployments;
mod jobs;
mod pods;
mod replication;
mod stateful_sets;

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
};

use libtest_mimic::{Arguments, Trial};
use windlass_tests::cluster::Api;

use case::{Case, Node};

/// The name and body of a case.
type Test = (&'static str, RunCase);

/// The body of a case.
type RunCase = fn(&mut Case<'_>);

type Start = Box<dyn FnOnce() -> Node + Send>;

/// The cases of a file, under their own names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use cases;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cases wait most of their time.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(2).max(4));
    let areas = [
        // The longest first.
        ("autoscalers", autoscalers::CASES),
        ("jobs", jobs::CASES),
        ("deployments", deployments::CASES),
        ("stateful_sets", stateful_sets::CASES),
        ("daemon_sets", daemon_sets::CASES),
        ("replication", replication::CASES),
        ("pods", pods::CASES),
    ];
    // Started by the first case that runs: `--list`, or a filter without matches, needs none.
    let start: Start = Box::new(Node::start);
    let node = Arc::new(LazyLock::new(start));
    let trials = areas
        .into_iter()
        .flat_map(|(area, cases)| cases.iter().map(move |(name, test)| (area, *name, *test)))
        .map(|(area, name, test)| {
            let node = Arc::clone(&node);
            let run = move || {
                let mut case = Case::new(&node, area, name);
                test(&mut case);
                case.finish();
                Ok(())
            };
            let needs_embedded = area == "autoscalers";
            Trial::test(format!("{area}::{name}"), run)
                .with_ignored_flag(needs_embedded && Api::from_env() == Api::Cluster)
        });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The last reference takes the node down, also after failures.
    drop(node);
    conclusion.exit_code()
}
