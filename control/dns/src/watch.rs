//! The watches of what the cluster's DNS is made of, as one stream of changes.

use futures::{Stream, StreamExt as _, future, stream};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use windlass_kit::reflector::{Extent, reflect};

/// An event of one of the watches.
#[derive(Debug)]
pub(super) enum Change {
    Namespace(Box<Event<Namespace>>),
    Service(Box<Event<Service>>),
    Slice(Box<Event<EndpointSlice>>),
    Node(Box<Event<Node>>),
}

/// All watches; errors are logged and retried with a back-off, so that the stream never ends.
pub(super) fn changes(client: &Client) -> impl Stream<Item = Change> + Send + Unpin + use<> {
    stream::select_all([
        watch(client, "namespaces").map(|e| Change::Namespace(Box::new(e))).boxed(),
        watch(client, "services").map(|e| Change::Service(Box::new(e))).boxed(),
        watch(client, "endpoint slices").map(|e| Change::Slice(Box::new(e))).boxed(),
        watch(client, "nodes").map(|e| Change::Node(Box::new(e))).boxed(),
    ])
}

fn watch<K>(client: &Client, what: &'static str) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let config = watcher::Config::default().streaming_lists();
    let events = reflect(Api::<K>::all(client.clone()), config, Extent::Many).default_backoff();
    events.filter_map(move |event| {
        future::ready(match event {
            Ok(event) => Some(event),
            Err(error) => {
                tracing::warn!(error = %windlass_kit::client::message(&error), what, "watch failed; the cluster's DNS answers from what it knows, retrying");
                None
            }
        })
    })
}
