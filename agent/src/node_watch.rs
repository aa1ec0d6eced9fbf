//! The watch of the node's own object.

use std::sync::Arc;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

/// Publishes the node's object as the API has it, `None` where it has none, until `shutdown`. The last object stays
/// while the API is unreachable.
pub(crate) async fn watch_node(
    client: Client,
    name: String,
    tx: watch::Sender<Option<Arc<Node>>>,
    shutdown: CancellationToken,
) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(reflect(Api::<Node>::all(client), config, Extent::Few).default_backoff());
    let mut listed = false;
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        match event {
            Ok(Some(watcher::Event::Init)) => listed = false,
            Ok(Some(watcher::Event::Apply(node) | watcher::Event::InitApply(node))) => {
                listed = true;
                tx.send_replace(Some(Arc::new(trim(node))));
            }
            Ok(Some(watcher::Event::InitDone)) if listed => {}
            Ok(Some(watcher::Event::InitDone | watcher::Event::Delete(_))) => {
                tx.send_if_modified(|known| known.take().is_some());
            }
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, "failed to watch the node's object; retrying"),
        }
    }
}

/// Drops the long lists that the agent does not read.
fn trim(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    node
}

#[cfg(test)]
mod tests {
    use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
    use serde_json::json;
    use tokio_util::task::AbortOnDropHandle;
    use windlass_tests::api_faults::with_each_fault;

    use super::*;
    use crate::test_api::{self, NODE, PATIENCE};

    fn zone(node: Option<&Node>) -> Option<&str> {
        node?.metadata.labels.as_ref()?.get("zone").map(String::as_str)
    }

    /// From the real API server: whichever request fails and whichever event, in whichever way.
    #[tokio::test(start_paused = true)]
    async fn whatever_fails_the_node_is_as_the_api_has_it() {
        let server = test_api::server();
        let nodes: Api<Node> = Api::all(test_api::user(&server));
        let create = async |zone: &str| {
            let node = json!({"metadata": {"name": NODE, "labels": {"zone": zone}}});
            nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        };
        let (ran, hit) = with_each_fault(async |faults| {
            create("a").await;
            let (tx, mut rx) = watch::channel(None);
            let client = test_api::of_node(&server, faults);
            let watching = tokio::spawn(watch_node(client, NODE.to_owned(), tx, CancellationToken::new()));
            let watching = AbortOnDropHandle::new(watching);
            let mut follows = async |wanted: Option<&str>| {
                let there = rx.wait_for(|node: &Option<Arc<Node>>| zone(node.as_deref()) == wanted);
                let came = tokio::time::timeout(PATIENCE, there).await.is_ok_and(|seen| seen.is_ok());
                assert!(came, "{wanted:?} never came; {:?}", faults.calls());
            };
            follows(Some("a")).await;
            let patch = Patch::Merge(json!({"metadata": {"labels": {"zone": "b"}}}));
            nodes.patch(NODE, &PatchParams::default(), &patch).await.unwrap();
            follows(Some("b")).await;
            nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
            follows(None).await;
            create("c").await;
            follows(Some("c")).await;
            drop(watching);
            nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
        })
        .await;
        assert!(ran >= 24 && hit == ran, "{hit} of {ran}");
    }
}
