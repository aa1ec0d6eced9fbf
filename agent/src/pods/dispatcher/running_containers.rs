//! What the rest of the agent observes of the container engine: the running containers of all pods, and the runtimes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use crate::{ContainerRecord, engine::containers::Info, pods::steps::context::RunningContainers};

/// Changes within this time are published together.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Publishes the names of Docker's runtimes.
pub(super) async fn publish_runtimes(mut info: watch::Receiver<Info>, tx: watch::Sender<Arc<BTreeSet<String>>>) {
    while info.changed().await.is_ok() {
        tx.send_replace(Arc::new(info.borrow_and_update().runtimes.clone()));
    }
}

/// Publishes the running containers of all pods, as their workers report them.
pub(super) async fn publish_running(
    mut running: mpsc::Receiver<RunningContainers>,
    tx: watch::Sender<Arc<Vec<ContainerRecord>>>,
) {
    let mut by_pod: BTreeMap<String, Vec<ContainerRecord>> = BTreeMap::new();
    while let Some(first) = running.recv().await {
        // Many pods change together, and the list is as long as the node has containers.
        tokio::time::sleep(DEBOUNCE).await;
        let mut next = Some(first);
        while let Some((uid, records)) = next {
            if records.is_empty() {
                drop(by_pod.remove(&uid))
            } else {
                drop(by_pod.insert(uid, records))
            }
            next = running.try_recv().ok();
        }
        tx.send_replace(Arc::new(by_pod.values().flatten().cloned().collect()));
    }
}
