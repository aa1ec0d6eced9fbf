//! Lists and watches as one stream of changes, and how they enter the model.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt as _, future, stream};
use jiff::Timestamp;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};

use windlass_kit::reflector::{Extent, reflect};

use super::refused::{self, Refusal};
use crate::model::{
    Family, Model, NodeFacts, ServiceId,
    objects::{EndpointSlice, Node, Service, TRIGGER},
};

/// One thing that a watch told.
#[derive(Debug)]
pub(super) enum Change {
    Service(Box<Event<Service>>),
    Slice(Box<Event<EndpointSlice>>),
    Node(Box<Event<Node>>),
}

/// All three watches; errors are logged and retried with back-off, so the stream never ends.
pub(super) fn changes(client: &Client, node: &str) -> impl Stream<Item = Change> + Send + Unpin + use<> {
    let proxied = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
    // Lists may come from the server's cache: after a restart of it all nodes ask at once.
    let labelled = || watcher::Config::default().any_semantic().labels(proxied);
    let services = watch::<Service>(client, labelled(), Extent::Many, "services");
    let slices = watch::<EndpointSlice>(client, labelled(), Extent::Many, "endpoint slices");
    let ours = watcher::Config::default().any_semantic().fields(&format!("metadata.name={node}"));
    let node = watch::<Node>(client, ours, Extent::Few, "our node");
    stream::select_all([
        services.map(|e| Change::Service(Box::new(e))).boxed(),
        slices.map(|e| Change::Slice(Box::new(e))).boxed(),
        node.map(|e| Change::Node(Box::new(e))).boxed(),
    ])
}

fn watch<K>(
    client: &Client,
    config: watcher::Config,
    extent: Extent,
    what: &'static str,
) -> impl Stream<Item = Event<K>> + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let mut refusal = Refusal::default();
    reflect(Api::<K>::all(client.clone()), config, extent).default_backoff().filter_map(move |event| {
        future::ready(match event {
            // That a list begins says nothing of whether it is allowed.
            Ok(Event::Init) => Some(Event::Init),
            Ok(event) => {
                if refusal.allowed() {
                    tracing::info!(what, "the API lets the proxy watch these now");
                }
                Some(event)
            }
            Err(error) => {
                match refused::message(&error) {
                    Some(message) => {
                        if refusal.refused() {
                            let remedy = refused::remedy(message);
                            tracing::error!(what, "the API refuses the proxy what it must watch, so that services do not work here: {message}; {remedy}. It is tried again until it is allowed");
                        }
                    }
                    None => tracing::warn!(%error, what, "a watch broke off; rules stay as they are and the watch is tried again"),
                }
                None
            }
        })
    })
}

/// Which first lists are complete, and what a list that is under way has named so far.
#[derive(Debug, Default)]
pub(super) struct Lists {
    services: Option<BTreeSet<ServiceId>>,
    slices: Option<BTreeSet<(ServiceId, Box<str>)>>,
    have_services: bool,
    have_slices: bool,
    have_node: bool,
    node_seen: bool,
    /// When endpoints changed that are not written yet, as whoever made the slices tells.
    triggers: Vec<(Family, Timestamp)>,
}

impl Lists {
    /// The first lists are there: rules may be written.
    pub(super) const fn complete(&self) -> bool {
        self.have_services && self.have_slices && self.have_node
    }

    /// The Node does not come: rules are written without it.
    pub(super) const fn go_on_without_node(&mut self) {
        self.have_node = true;
    }

    /// Takes the times at which endpoints changed.
    pub(super) fn take_triggers(&mut self) -> Vec<(Family, Timestamp)> {
        std::mem::take(&mut self.triggers)
    }

    /// Whether the list of our Node came.
    pub(super) const fn has_node(&self) -> bool {
        self.have_node
    }

    /// Takes a change in: whether Services changed, slices changed, and news of our Node (inner
    /// `None`: it is gone).
    pub(super) fn take(
        &mut self,
        change: Change,
        model: &mut Model,
        node: &str,
    ) -> (bool, bool, Option<Option<NodeFacts>>) {
        match change {
            Change::Service(event) => (self.service(*event, model), false, None),
            Change::Slice(event) => (false, self.slice(*event, model, node), None),
            Change::Node(event) => (false, false, self.node(*event, node)),
        }
    }

    fn service(&mut self, event: Event<Service>, model: &mut Model) -> bool {
        match event {
            Event::Init => {
                self.services = Some(BTreeSet::new());
                false
            }
            Event::InitApply(service) => {
                if let Some(listed) = &mut self.services {
                    listed.insert(Model::service_key(&service));
                }
                model.put_service(&service)
            }
            Event::Apply(service) => model.put_service(&service),
            Event::Delete(service) => model.delete_service(&service),
            Event::InitDone => {
                self.have_services = true;
                self.services.take().is_some_and(|listed| model.keep_services(&listed))
            }
        }
    }

    fn slice(&mut self, event: Event<EndpointSlice>, model: &mut Model, node: &str) -> bool {
        match event {
            Event::Init => {
                self.slices = Some(BTreeSet::new());
                false
            }
            Event::InitApply(slice) => {
                if let Some(listed) = &mut self.slices {
                    listed.extend(Model::slice_key(&slice));
                }
                model.put_slice(&slice, node)
            }
            Event::Apply(slice) => {
                let changed = model.put_slice(&slice, node);
                let trigger = slice.metadata.annotations.iter().flatten().find(|(key, _)| *key == TRIGGER);
                let at = trigger.filter(|_| changed).and_then(|(_, at)| at.parse::<Timestamp>().ok());
                self.triggers.extend(slice.family().zip(at));
                changed
            }
            Event::Delete(slice) => model.delete_slice(&slice),
            Event::InitDone => {
                self.have_slices = true;
                self.slices.take().is_some_and(|listed| model.keep_slices(&listed))
            }
        }
    }

    fn node(&mut self, event: Event<Node>, name: &str) -> Option<Option<NodeFacts>> {
        match event {
            Event::Init => {
                self.node_seen = false;
                None
            }
            Event::Apply(node) | Event::InitApply(node) if node.metadata.name.as_deref() == Some(name) => {
                self.node_seen = true;
                Some(Some(NodeFacts::of(&node)))
            }
            Event::Delete(node) if node.metadata.name.as_deref() == Some(name) => Some(None),
            Event::InitDone => {
                self.have_node = true;
                (!self.node_seen).then_some(None)
            }
            _ => None,
        }
    }
}
