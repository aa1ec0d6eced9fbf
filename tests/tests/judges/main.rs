//! Judges that others wrote, on a node of ours: groups of upstream's end-to-end suite, and operators that users run, with
//! their own manifests. All share one node. Nothing of them is in this repository: the variable [`judge::JUDGES`] names the
//! folder where they lie, and without it these tests are ignored.
//!
//! In the folder:
//! - `e2e.test`, upstream's suite of the release that is served, as `go test -c ./test/e2e` makes it;
//! - `images/*.tar`, each of `docker save`, with the images that the suite and the manifests name;
//! - `operators/NAME/*.yaml`, manifests as the project of this name publishes them, applied in the order of their names; who
//!   has no folder is left out;
//! - `examples/tekton/*.yaml`, of Tekton's own examples those that need no network, with images that are there.

mod conformance;
mod judge;
mod operators;
mod suite;

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
};

use libtest_mimic::{Arguments, Trial};
use windlass_tests::skip;

use judge::{JUDGES, Node};

type Start = fn() -> Node;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let skipped = judge::folder().is_none();
    if skipped && !arguments.list {
        skip("judges", &format!("{JUDGES} is not set"));
    }
    // Started by the first test that runs: `--list`, or a filter without matches, needs none.
    let node: Arc<LazyLock<Node, Start>> = Arc::new(LazyLock::new(Node::start as Start));
    let of = |name: String, skipped: bool, test: Box<dyn FnOnce(&Node) + Send>| {
        let node = Arc::clone(&node);
        let run = move || {
            test(&node);
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(skipped)
    };
    let mut trials = Vec::new();
    for (encoding, content_type) in suite::CONTENT_TYPES {
        for (group, focus) in suite::GROUPS {
            let test = Box::new(|node: &Node| suite::passes(node, focus, content_type));
            trials.push(of(format!("suite::{group}::{encoding}"), skipped, test));
        }
    }
    for (name, test) in operators::TESTS {
        let is_missing = judge::folder().is_some_and(|folder| !folder.join("operators").join(name).is_dir());
        if is_missing && !arguments.list {
            skip("judges", &format!("the folder of {JUDGES} has no operators/{name}"));
        }
        trials.push(of(format!("operators::{name}"), skipped || is_missing, Box::new(test)));
    }
    // By itself: it takes as long as all others.
    let is_asked = std::env::var_os(conformance::REPORT).is_some();
    trials.push(of("conformance".to_owned(), skipped || !is_asked, Box::new(conformance::passes)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The last reference ends the node, also after failures.
    drop(node);
    conclusion.exit_code()
}
