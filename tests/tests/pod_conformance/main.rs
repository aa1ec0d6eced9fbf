//! Pod conformance: one test for each promise about a pod. All share one running node, since starting one takes longer
//! than most tests; each case has a namespace of its own.
//!
//! Run like any other test: `cargo test -p windlass-tests --test pod_conformance -- FILTER`.

mod case;
mod conditions;
mod deletion;
mod environment;
mod images;
mod lifecycle;
mod messages;
mod names;
mod podspec;
mod probes;
mod reasons;
mod resize;
mod resources;
mod sandbox;
mod security;
mod volumes;

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
};

use libtest_mimic::{Arguments, Trial};

use case::{Case, Node, namespace_of};

/// The name and body of a case.
type Test = (&'static str, RunCase);

/// The body of a case.
type RunCase = fn(&Case<'_>);

type Start = Box<dyn FnOnce() -> Node + Send>;

/// The cases of a file, under their own names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use cases;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let areas = [
        ("conditions", conditions::CASES),
        ("deletion", deletion::CASES),
        ("environment", environment::CASES),
        ("images", images::CASES),
        ("lifecycle", lifecycle::CASES),
        ("messages", messages::CASES),
        ("names", names::CASES),
        ("podspec", podspec::CASES),
        ("probes", probes::CASES),
        ("reasons", reasons::CASES),
        ("resize", resize::CASES),
        ("resources", resources::CASES),
        ("sandbox", sandbox::CASES),
        ("security", security::CASES),
        ("volumes", volumes::CASES),
        ("volumes", volumes::objects::CASES),
        ("volumes", volumes::mounts::CASES),
    ];
    let tests: Vec<(&str, &str, RunCase)> = areas
        .into_iter()
        .flat_map(|(area, cases)| cases.iter().map(move |(name, test)| (area, *name, *test)))
        .collect();
    let wanted =
        |area: &str, name: &str| arguments.filter.as_ref().is_none_or(|f| format!("{area}::{name}").contains(f));
    let namespaces: Vec<String> = tests
        .iter()
        .filter(|(area, name, _)| wanted(area, name))
        .map(|(area, name, _)| namespace_of(area, name))
        .collect();
    // Created by the first case that runs: `--list`, or a filter without matches, needs none.
    let start: Start = Box::new(move || Node::start(&namespaces));
    let node = Arc::new(LazyLock::new(start));
    let trials = tests.into_iter().map(|(area, name, test)| {
        let node = Arc::clone(&node);
        Trial::test(format!("{area}::{name}"), move || {
            test(&Case::new(&node, area, name));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The last reference takes the node down, also after failures.
    drop(node);
    conclusion.exit_code()
}
