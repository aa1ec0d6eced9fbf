//! Two states that are easily taken for one. [`Started`]: the parts of this process run; systemd and packages wait for that.
//! [`NodeReadiness`]: what the API says of the Node, which depends on Docker, a network plugin and an administrator; only who
//! asks for it waits for that.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::systemd::Liveness;

/// The Node in the API, from this process's first report on: what it says before is of an earlier process.
pub(crate) type WatchedNode = watch::Receiver<Option<Arc<Node>>>;

/// All parts of this process run.
pub(crate) struct Started(Liveness);

impl Started {
    pub(super) fn new(liveness: Liveness) -> Self {
        Self(liveness)
    }

    /// What shows from now on that they make progress.
    pub(crate) fn into_liveness(self) -> Liveness {
        self.0
    }
}

/// The Node's condition `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeReadiness {
    Ready,
    /// With what the condition says, if anything.
    NotReady(String),
    /// This process has not reported yet.
    Unknown,
}

impl NodeReadiness {
    /// Of a Node. Pure.
    pub(crate) fn of(node: Option<&Node>) -> Self {
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        match conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready") {
            Some(condition) if condition.status == "True" => Self::Ready,
            Some(condition) => Self::NotReady(condition.message.clone().unwrap_or_default()),
            None => Self::Unknown,
        }
    }
}

/// Waits for the node to be Ready, without a request of its own: the node watches its Node anyway.
#[derive(Clone)]
pub(crate) struct Waiter {
    pub(super) node: Option<WatchedNode>,
    /// Whether the cluster's DNS of this process has its records.
    pub(super) dns_ready: Option<watch::Receiver<bool>>,
}

impl Waiter {
    /// Waits until the cluster's DNS can answer, if there is one in this process, and the Node in the API is Ready, if this
    /// process is one.
    pub(crate) async fn ready(mut self) {
        // An error is the end of the task, which ends the process.
        if let Some(ready) = &mut self.dns_ready {
            let _ = ready.wait_for(|ready| *ready).await;
        }
        if let Some(node) = &mut self.node
            && node.wait_for(|node| NodeReadiness::of(node.as_deref()) == NodeReadiness::Ready).await.is_err()
        {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(status: &str, message: &str) -> Arc<Node> {
        let conditions = json!([
            {"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status, "message": message},
        ]);
        let node = json!({"metadata": {"name": "n1"}, "status": {"conditions": conditions}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn readiness_is_that_of_the_condition() {
        assert_eq!(NodeReadiness::of(None), NodeReadiness::Unknown);
        assert_eq!(NodeReadiness::of(Some(&Node::default())), NodeReadiness::Unknown);
        assert_eq!(NodeReadiness::of(Some(&node("True", "fine"))), NodeReadiness::Ready);
        assert_eq!(NodeReadiness::of(Some(&node("False", "no network"))), NodeReadiness::NotReady("no network".into()));
        assert_eq!(NodeReadiness::of(Some(&node("Unknown", ""))), NodeReadiness::NotReady(String::new()));
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_the_watch() {
        let (nodes, dns) = (watch::Sender::new(None), watch::Sender::new(false));
        let waiter = Waiter { node: Some(nodes.subscribe()), dns_ready: Some(dns.subscribe()) };
        let waiting = tokio::spawn(waiter.ready());
        nodes.send_replace(Some(node("False", "no network")));
        dns.send_replace(true);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        nodes.send_replace(Some(node("True", "")));
        waiting.await.unwrap();
        // An API alone has no Node.
        Waiter { node: None, dns_ready: None }.ready().await;
    }
}
