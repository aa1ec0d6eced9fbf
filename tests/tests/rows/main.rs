//! One test for each row of the table of what an agent does with a pod, named after the row. All share one running
//! node, since making one takes longer than asking it; each row has a namespace of its own.
//!
//! Run like any other test: `cargo test -p windlass-tests --test rows -- FILTER`.

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
mod row;
mod sandbox;
mod security;
mod volumes;

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
};

use libtest_mimic::{Arguments, Trial};

use row::{Node, Row, namespace_of};

/// A row's name and its test.
type Test = (&'static str, Ask);

/// What a row asks of the node.
type Ask = fn(&Row<'_>);

type Start = Box<dyn FnOnce() -> Node + Send>;

/// The tests of a file, under their own names.
macro_rules! rows {
    ($($name:ident),* $(,)?) => {
        pub(crate) const ROWS: &[crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use rows;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let areas = [
        ("conditions", conditions::ROWS),
        ("deletion", deletion::ROWS),
        ("environment", environment::ROWS),
        ("images", images::ROWS),
        ("lifecycle", lifecycle::ROWS),
        ("messages", messages::ROWS),
        ("names", names::ROWS),
        ("podspec", podspec::ROWS),
        ("probes", probes::ROWS),
        ("reasons", reasons::ROWS),
        ("resize", resize::ROWS),
        ("resources", resources::ROWS),
        ("sandbox", sandbox::ROWS),
        ("security", security::ROWS),
        ("volumes", volumes::ROWS),
        ("volumes", volumes::objects::ROWS),
        ("volumes", volumes::mounts::ROWS),
    ];
    let tests: Vec<(&str, &str, Ask)> =
        areas.into_iter().flat_map(|(area, rows)| rows.iter().map(move |(name, test)| (area, *name, *test))).collect();
    let wanted =
        |area: &str, name: &str| arguments.filter.as_ref().is_none_or(|f| format!("{area}::{name}").contains(f));
    let namespaces: Vec<String> = tests
        .iter()
        .filter(|(area, name, _)| wanted(area, name))
        .map(|(area, name, _)| namespace_of(area, name))
        .collect();
    // Made by the first row that runs: a list, or a filter that fits no row, needs none.
    let start: Start = Box::new(move || Node::start(&namespaces));
    let node = Arc::new(LazyLock::new(start));
    let trials = tests.into_iter().map(|(area, name, test)| {
        let node = Arc::clone(&node);
        Trial::test(format!("{area}::{name}"), move || {
            test(&Row::new(&node, area, name));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The last holder takes the node down, also when rows have failed.
    drop(node);
    conclusion.exit_code()
}
