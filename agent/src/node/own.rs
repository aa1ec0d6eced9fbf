//! The node's own object, as the API has it now.

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

/// Keeps `tell` at what the API says of the node, nothing where there is none, until `shutdown`. What was told stays when
/// the API is away.
pub(crate) async fn follow(
    client: Client,
    name: String,
    tell: watch::Sender<Option<Arc<Node>>>,
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
                tell.send_replace(Some(Arc::new(trim(node))));
            }
            Ok(Some(watcher::Event::InitDone)) if listed => {}
            Ok(Some(watcher::Event::InitDone | watcher::Event::Delete(_))) => {
                tell.send_if_modified(|known| known.take().is_some());
            }
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, "the node's own object could not be watched; it is tried again"),
        }
    }
}

/// Drops the long lists that nobody here reads.
fn trim(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    node
}
