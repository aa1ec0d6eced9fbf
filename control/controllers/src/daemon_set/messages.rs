//! Texts of a DaemonSet's events, as in upstream's pkg/controller/daemon/daemon_controller.go. Pure.

pub(super) const SELECTING_ALL: &str = "SelectingAll";
pub(super) const SELECTING_ALL_TEXT: &str = "This daemon set is selecting all pods. A non-empty selector is required.";

pub(super) const FAILED_DAEMON_POD: &str = "FailedDaemonPod";
pub(super) const SUCCEEDED_DAEMON_POD: &str = "SucceededDaemonPod";

pub(super) fn failed(namespace: &str, pod: &str, node: &str) -> String {
    format!("Found failed daemon pod {namespace}/{pod} on node {node}, will try to kill it")
}

pub(super) fn succeeded(namespace: &str, pod: &str, node: &str) -> String {
    format!("Found succeeded daemon pod {namespace}/{pod} on node {node}, will try to delete it")
}
