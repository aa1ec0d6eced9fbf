//! Keeps the graph in sync with the store: it catches up on every query, so that a node may read the objects of its pod
//! as soon as the pod is bound.

use futures::FutureExt as _;
use parking_lot::Mutex;

use super::{Relations, Vertex, graph::Graph};
use crate::store::{Error, Event, Store, Watch};

const PODS: &str = "pods";
const VOLUMES: &str = "persistentvolumes";

#[derive(Debug)]
pub(crate) struct NodeGraph {
    store: Store,
    synced: Mutex<Option<SyncedGraph>>,
}

#[derive(Debug)]
struct SyncedGraph {
    graph: Graph,
    pods: Watch,
    volumes: Watch,
}

impl NodeGraph {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, synced: Mutex::default() }
    }
}

impl Relations for NodeGraph {
    fn related(&self, node: &str, object: &Vertex) -> bool {
        let mut synced = self.synced.lock();
        if synced.as_mut().is_none_or(|f| f.catch_up().is_err()) {
            *synced = SyncedGraph::begin(&self.store);
        }
        // Without an up-to-date graph access is denied.
        synced.as_ref().is_some_and(|f| f.graph.related(node, object))
    }
}

impl SyncedGraph {
    /// Builds the graph from a full list.
    fn begin(store: &Store) -> Option<Self> {
        let mut graph = Graph::default();
        let (pods, of_pods) = store.list(store.resource(PODS), None);
        for pod in pods {
            graph.pod(&pod.key, Some(&pod.value()));
        }
        let (volumes, of_volumes) = store.list(store.resource(VOLUMES), None);
        for volume in volumes {
            graph.volume(&volume.key.name, Some(&volume.value()));
        }
        let (pods, volumes) =
            (store.watch(store.resource(PODS), of_pods).ok()?, store.watch(store.resource(VOLUMES), of_volumes).ok()?);
        let mut all = Self { graph, pods, volumes };
        all.catch_up().ok().map(|()| all)
    }

    /// Applies the changes since the last call.
    fn catch_up(&mut self) -> Result<(), Error> {
        let Self { graph, pods, volumes } = self;
        read_changes(pods, |change| {
            graph.pod(&change.object.key, (!change.deleted).then(|| change.object.value()).as_ref())
        })?;
        read_changes(volumes, |change| {
            graph.volume(&change.object.key.name, (!change.deleted).then(|| change.object.value()).as_ref())
        })
    }
}

/// Reads the changes that are available, without waiting for more.
pub(crate) fn read_changes(watch: &mut Watch, mut take: impl FnMut(&Event)) -> Result<(), Error> {
    loop {
        match watch.next().now_or_never() {
            Some(Ok(changes)) => changes.iter().for_each(|event| take(event)),
            // The store is closing; the graph stays valid until then.
            None | Some(Err(Error::Closed)) => return Ok(()),
            Some(Err(error)) => return Err(error),
        }
    }
}
