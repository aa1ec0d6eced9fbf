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
