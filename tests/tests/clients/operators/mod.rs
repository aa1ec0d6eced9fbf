//! Operators as users write them, with webhooks of their own: each over an API server of its own, which is killed in the midst.
//! What is asserted is what a user of kubectl sees.

mod kopf;
mod kube_rs;

use nix::sys::signal::Signal;
use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, eventually};

/// All tests.
pub(crate) const TESTS: [(&str, fn()); 2] =
    [("kube_rs_operator_lives", kube_rs::an_operator_lives), ("kopf_operator_lives", kopf::an_operator_lives)];

/// An API server that a test may kill. Fields are dropped in this order: the server before its testbed.
struct Site {
    daemon: Daemon,
    testbed: Testbed,
}

impl Site {
    fn start() -> Self {
        let testbed = Testbed::without_docker();
        let daemon = testbed.windlass().api_alone();
        Self { daemon, testbed }
    }

    fn kubectl(&self) -> Kubectl<'_> {
        self.testbed.windlass().kubectl()
    }

    /// The server ends as by a loss of power, and comes back over what it has stored.
    fn is_killed_and_restarted(&mut self) {
        self.daemon.end(Signal::SIGKILL);
        self.daemon = self.testbed.windlass().api_alone();
    }
}

/// Waits until the object has this value at the pointer.
#[track_caller]
fn becomes(kubectl: &Kubectl<'_>, object: &[&str], pointer: &str, wanted: &Value) {
    eventually(DEFAULT_TIMEOUT, &format!("{object:?} has {wanted} at {pointer}"), || {
        let found = kubectl.json(object)?;
        anyhow::ensure!(found.pointer(pointer) == Some(wanted), "{found}");
        Ok(())
    });
}

/// kubectl fails with this text.
#[track_caller]
fn is_refused(kubectl: &Kubectl<'_>, arguments: &[&str], input: &Value, text: &str) {
    let output = kubectl.output(arguments, &input.to_string());
    assert!(!output.ok && output.err.contains(text), "{arguments:?} is not refused with {text:?}: {output:?}");
}

/// The webhook refuses a manifest with this text.
#[track_caller]
fn is_denied(kubectl: &Kubectl<'_>, manifest: &Value, webhook: &str, text: &str) {
    is_refused(
        kubectl,
        &["apply", "-f", "-"],
        manifest,
        &format!("admission webhook {webhook:?} denied the request: {text}"),
    );
}

/// Waits until the definition is established, and discovery shows its versions.
#[track_caller]
fn established(kubectl: &Kubectl<'_>, name: &str, types: &[&str]) {
    let _ = kubectl.run(&["wait", "--for=condition=Established", "--timeout=60s", &format!("crd/{name}")]);
    for one in types {
        eventually(DEFAULT_TIMEOUT, "the type is served", || kubectl.try_run(&["get", one]));
    }
}
