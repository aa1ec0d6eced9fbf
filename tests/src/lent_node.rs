//! Nodes that tests use one after the other: starting a machine and a node takes longer than many of the tests
//! themselves. A test has exclusive use of a clean node. Tests that kill, fill, freeze or configure a node start a
//! separate one.

use std::fs;

use parking_lot::Mutex;

use crate::{DEFAULT_TIMEOUT, Kubectl, Testbed, Windlass, eventually};

/// Nodes that no test is using. They end with the process; the guards of their testbeds wait for its end.
static FREE: Mutex<Vec<Node>> = Mutex::new(Vec::new());

/// What tests make in the namespace `default`, in the order in which kubectl deletes it: those that make others first.
const OBJECTS: &str = "cronjobs,jobs,deployments,statefulsets,daemonsets,replicasets,replicationcontrollers,horizontalpodautoscalers,pods,\
                       persistentvolumeclaims,persistentvolumes,secrets,poddisruptionbudgets,resourcequotas,limitranges";
/// The same where something of the cluster's own stays.
const OTHERS: &str = "services,configmaps";
const STAYS: &str = "--field-selector=metadata.name!=kubernetes,metadata.name!=kube-root-ca.crt";

#[derive(Debug)]
struct Node {
    testbed: &'static Testbed,
    windlass: Windlass<'static>,
}

/// A node that is given back when dropped, and not used again if its test has failed.
#[derive(Debug)]
pub struct LentNode(Option<Node>);

impl LentNode {
    /// A node that is Ready, in the configuration of [`Windlass::up`].
    #[must_use]
    pub fn take() -> Self {
        let free = FREE.lock().pop();
        Self(Some(free.unwrap_or_else(|| {
            let testbed: &'static Testbed = Box::leak(Box::new(Testbed::new()));
            let mut windlass = testbed.windlass();
            let _ = windlass.up();
            Node { testbed, windlass }
        })))
    }

    fn node(&self) -> &Node {
        self.0.as_ref().expect("it is lent until it is dropped")
    }

    /// Its machine.
    #[must_use]
    pub fn testbed(&self) -> &'static Testbed {
        self.node().testbed
    }

    /// kubectl of its administrator.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl<'static> {
        self.node().windlass.kubectl()
    }

    /// Its program, to ask and not to end.
    #[must_use]
    pub fn windlass(&self) -> &Windlass<'static> {
        &self.node().windlass
    }
}

/// Takes away what a test has made. That this is all that there is, is checked.
fn clean(node: &Node) {
    let kubectl = node.windlass.kubectl();
    let delete = |kinds: &str, rest: &[&str]| {
        let args: Vec<&str> = ["delete", kinds, "--timeout=90s"].iter().chain(rest).copied().collect();
        let _ = kubectl.run(&args);
    };
    delete(OBJECTS, &["--all", "--cascade=background"]);
    delete(OTHERS, &[STAYS]);
    eventually(DEFAULT_TIMEOUT, "a test has left no container", || {
        let left = node.testbed.docker(&["ps", "-aq"]);
        anyhow::ensure!(left.trim().is_empty(), "{}", node.testbed.docker(&["ps", "-a"]));
        let pods = node.testbed.dir().join("data/pods");
        let left = fs::read_dir(&pods).map_or(0, |entries| entries.flatten().count());
        anyhow::ensure!(left == 0, "{left} directories in {}", pods.display());
        Ok(())
    });
    // Of a pod of the same name the next test would take an old event for its own: until none comes any more.
    eventually(DEFAULT_TIMEOUT, "a test has left no event", || {
        delete("events", &["--all"]);
        std::thread::sleep(std::time::Duration::from_secs(1));
        let left = kubectl.try_run(&["get", "events", "-o", "name"])?;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
    let _ = fs::remove_dir_all(node.testbed.dir().join("shared"));
    node.testbed.assert_no_empty_writes();
}

impl Drop for LentNode {
    fn drop(&mut self) {
        let Some(node) = self.0.take() else { return };
        if std::thread::panicking() {
            return;
        }
        clean(&node);
        FREE.lock().push(node);
    }
}
