//! The node that all cases share, and what a case does.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use windlass_tests::{
    DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, eventually,
    recording::Recording,
    shared_dir::{self, SharedDir},
};

/// Fields are dropped in this order: windlass before its testbed.
pub(crate) struct Node {
    _windlass: Daemon,
    testbed: Testbed,
}

impl Node {
    pub(crate) fn start() -> Self {
        let testbed = Testbed::with_registry();
        let mut windlass = testbed.windlass();
        let _ = windlass.up();
        let daemon = windlass.into_daemon();
        Self { _windlass: daemon, testbed }
    }
}

/// A case: a namespace and a recording.
pub(crate) struct Case<'n> {
    pub(crate) testbed: &'n Testbed,
    pub(crate) kubectl: Kubectl<'n>,
    pub(crate) recording: Recording<'n>,
    pub(crate) namespace: String,
}

impl<'n> Case<'n> {
    pub(crate) fn new(node: &'n Node, area: &str, name: &str) -> Self {
        // Names have at most 63 characters.
        let namespace: String = format!("{area}-{name}").replace('_', "-").chars().take(60).collect();
        let namespace = namespace.trim_end_matches('-').to_owned();
        let kubectl = node.testbed.windlass().kubectl();
        let _ = kubectl.run(&["create", "namespace", &namespace]);
        kubectl.accounts(&[&namespace]);
        let kubectl = kubectl.within(&namespace);
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/recorded").join(format!("{area}_{name}.txt"));
        let recording = Recording::open(kubectl.clone(), &namespace, file);
        Self { testbed: &node.testbed, kubectl, recording, namespace }
    }

    /// A host directory of this case.
    pub(crate) fn directory(&self) -> PathBuf {
        SharedDir::open_to_all(self.testbed, &self.namespace).0
    }

    /// Runs kubectl; what it prints is recorded.
    pub(crate) fn typed(&mut self, line: &str) {
        let args: Vec<&str> = line.split(' ').collect();
        self.recording.command(&args, "");
    }

    /// `kubectl apply -f -`; what it prints is recorded.
    pub(crate) fn applied(&mut self, manifest: &str) {
        self.recording.command(&["apply", "-f", "-"], manifest);
    }

    /// Waits until an object (`kind/name`) is as `is` says.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, object: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until_within(DEFAULT_TIMEOUT, what, object, is)
    }

    /// Like [`until`](Self::until), with another limit.
    #[track_caller]
    pub(crate) fn until_within(
        &mut self,
        limit: Duration,
        what: &str,
        object: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let found = eventually(limit, &format!("{object}: {what}"), || {
            let found = self.kubectl.json(&[object])?;
            anyhow::ensure!(is(&found), "{}", found["status"]);
            Ok(found)
        });
        self.recording.learn();
        found
    }

    /// Waits until `count` pods with a label are Ready, and no others exist.
    #[track_caller]
    pub(crate) fn ready(&mut self, selector: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} pods with {selector} are Ready");
        let pods = eventually(DEFAULT_TIMEOUT, &what, || self.kubectl.ready_pods(selector, count));
        self.recording.learn();
        pods
    }

    /// Waits until nothing of these kinds (as for `kubectl get`) is left.
    #[track_caller]
    pub(crate) fn gone(&mut self, kinds: &str) {
        eventually(DEFAULT_TIMEOUT, &format!("{kinds} are gone"), || {
            let asked: Vec<&str> = ["get", "-o", "name"].into_iter().chain(kinds.split(' ')).collect();
            let left = self.kubectl.try_run(&asked)?;
            anyhow::ensure!(left.trim().is_empty(), "{left}");
            Ok(())
        });
    }

    pub(crate) fn finish(self) {
        let Self { kubectl, recording, namespace, .. } = self;
        recording.finish();
        let _ = kubectl.run(&["delete", "namespace", &namespace, "--wait=false"]);
    }
}

/// The name of an object.
pub(crate) fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Whether an object has this condition with status True.
pub(crate) fn has(object: &Value, condition: &str) -> bool {
    shared_dir::condition(object, condition)["status"] == "True"
}

/// Whether the controller has seen the object as it is now.
pub(crate) fn is_observed(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}
