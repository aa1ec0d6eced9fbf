//! Lists and watches as one stream of changes, and how these are applied to the model.

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

use super::forbidden::{self, ForbiddenState};
use crate::model::{
    Family, Model, NodeFacts, ServiceCidrs, ServiceId, SliceId,
    objects::{EndpointSlice, Node, Service, ServiceCidr, TRIGGER_TIME},
};

/// What does not work where a watch is forbidden.
const CONSEQUENCE: &str = "services do not work on this node";

/// An event of one of the watches.
#[derive(Debug)]
pub(super) enum Change {
    Service(Box<Event<Service>>),
    Slice(Box<Event<EndpointSlice>>),
    Node(Box<Event<Node>>),
    Range(Box<Event<ServiceCidr>>),
}

/// All watches; errors are logged and retried with back-off, so the stream never ends. ServiceCIDRs are watched where
/// rules depend on them.
pub(super) fn changes(client: &Client, node: &str, ranges: bool) -> impl Stream<Item = Change> + Send + Unpin + use<> {
    let proxied = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
    // Lists may come from the watch cache of the API server: after a restart of it all nodes list at once.
    let labelled = || watcher::Config::default().any_semantic().labels(proxied);
    let services = watch::<Service>(client, labelled(), Extent::Many, "services", CONSEQUENCE);
    let slices = watch::<EndpointSlice>(client, labelled(), Extent::Many, "endpoint slices", CONSEQUENCE);
    let ours = watcher::Config::default().any_semantic().fields(&format!("metadata.name={node}"));
    let node = watch::<Node>(client, ours, Extent::Few, "our node", CONSEQUENCE);
    let any = watcher::Config::default().any_semantic();
    let ranges = ranges.then(|| watch::<ServiceCidr>(client, any, Extent::Few, "ServiceCIDRs", CONSEQUENCE));
    stream::select_all([
        stream::iter(ranges).flatten().map(|e| Change::Range(Box::new(e))).boxed(),
        services.map(|e| Change::Service(Box::new(e))).boxed(),
        slices.map(|e| Change::Slice(Box::new(e))).boxed(),
        node.map(|e| Change::Node(Box::new(e))).boxed(),
    ])
}

/// One list and watch; `consequence` says what does not work where the API forbids it.
pub(super) fn watch<K>(
    client: &Client,
    config: watcher::Config,
    extent: Extent,
    what: &'static str,
    consequence: &'static str,
) -> impl Stream<Item = Event<K>> + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let mut state = ForbiddenState::default();
    reflect(Api::<K>::all(client.clone()), config, extent).default_backoff().filter_map(move |event| {
        future::ready(match event {
            // The begin of a list does not show yet whether it is allowed.
            Ok(Event::Init) => Some(Event::Init),
            Ok(event) => {
                if state.allowed() {
                    tracing::info!(what, "the API lets the proxy watch these now");
                }
                Some(event)
            }
            Err(error) => {
                match forbidden::message(&error) {
                    Some(message) => {
                        if state.forbidden() {
                            let remedy = forbidden::remedy(message);
                            tracing::error!(what, "the API forbids a watch that the proxy needs; {consequence}, retrying: {message}; {remedy}");
                        }
                    }
                    None => tracing::warn!(error = %windlass_kit::client::message(&error), what, "watch failed; rules stay as they are, retrying"),
                }
                None
            }
        })
    })
}

/// When the endpoints of a Service changed.
#[derive(Debug, Clone)]
pub(super) enum Trigger {
    At(Family, ServiceId, Timestamp),
    /// A slice was deleted: earlier times of its Service no longer count.
    Forget(ServiceId),
}

/// What a change was about.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Services changed.
    pub(super) services: bool,
    /// Slices changed.
    pub(super) slices: bool,
    /// Ranges of cluster IPs changed.
    pub(super) ranges: bool,
    /// The new facts of our Node, if it was received (inner `None`: it was deleted).
    pub(super) node: Option<Option<NodeFacts>>,
}

/// Which initial lists are complete, and the objects of a list in progress.
#[derive(Debug, Default)]
pub(super) struct InitialSync {
    services: Option<BTreeSet<ServiceId>>,
    slices: Option<BTreeSet<SliceId>>,
    ranges: Option<BTreeSet<String>>,
    have_services: bool,
    have_slices: bool,
    have_node: bool,
    node_seen: bool,
    /// When endpoints changed that are not written yet, as the EndpointSlice controller reports
    /// (`endpoints.kubernetes.io/last-change-trigger-time`).
    triggers: Vec<Trigger>,
}

impl InitialSync {
    /// Whether all initial lists are complete, so that rules may be written.
    pub(super) const fn complete(&self) -> bool {
        self.have_services && self.have_slices && self.have_node
    }

    /// Stops waiting for the Node: rules are written without it.
    pub(super) const fn proceed_without_node(&mut self) {
        self.have_node = true;
    }

    /// The times at which endpoints changed since the last call.
    pub(super) fn take_triggers(&mut self) -> Vec<Trigger> {
        std::mem::take(&mut self.triggers)
    }

    /// Whether the list of our Node is complete.
    pub(super) const fn has_node(&self) -> bool {
        self.have_node
    }

    /// Applies a change to the model.
    pub(super) fn apply(&mut self, change: Change, model: &mut Model, node: &str) -> Applied {
        let mut applied = Applied::default();
        match change {
            Change::Service(event) => applied.services = self.service(*event, model),
            Change::Slice(event) => applied.slices = self.slice(*event, model, node),
            Change::Node(event) => applied.node = self.node(*event, node),
            Change::Range(event) => applied.ranges = self.range(*event, model),
        }
        applied
    }

    fn range(&mut self, event: Event<ServiceCidr>, model: &mut Model) -> bool {
        let known = &mut model.service_cidrs;
        match event {
            Event::Init => {
                self.ranges = Some(BTreeSet::new());
                false
            }
            Event::InitApply(range) => {
                if let Some(listed) = &mut self.ranges {
                    listed.insert(ServiceCidrs::key(&range));
                }
                known.put(&range)
            }
            Event::Apply(range) => known.put(&range),
            Event::Delete(range) => known.delete(&range),
            Event::InitDone => self.ranges.take().is_some_and(|listed| known.retain(&listed)),
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
                self.services.take().is_some_and(|listed| model.retain_services(&listed))
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
                    listed.insert(Model::slice_key(&slice));
                }
                model.put_slice(&slice, node)
            }
            Event::Apply(slice) => {
                let changed = model.put_slice(&slice, node);
                let owner = model.owner_of(&slice).cloned();
                let trigger = slice.metadata.annotations.iter().flatten().find(|(key, _)| *key == TRIGGER_TIME);
                let at = trigger.filter(|_| changed).and_then(|(_, at)| at.parse::<Timestamp>().ok());
                if let (Some(family), Some(owner), Some(at)) = (slice.family(), owner, at) {
                    self.triggers.push(Trigger::At(family, owner, at));
                }
                changed
            }
            Event::Delete(slice) => {
                self.triggers.extend(model.owner_of(&slice).cloned().map(Trigger::Forget));
                model.delete_slice(&slice)
            }
            Event::InitDone => {
                self.have_slices = true;
                self.slices.take().is_some_and(|listed| model.retain_slices(&listed))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The time of a change counts until its slice is deleted.
    #[test]
    fn a_deleted_slice_takes_the_times_of_its_service_with_it() {
        let slice = |endpoints: &[&str]| -> Box<Event<EndpointSlice>> {
            let endpoints: Vec<_> = endpoints.iter().map(|ip| json!({"addresses": [ip]})).collect();
            let object = json!({"metadata": {"name": "s", "namespace": "ns",
                    "labels": {"kubernetes.io/service-name": "web"}, "annotations": {TRIGGER_TIME: "2026-01-01T00:00:00Z"}},
                "addressType": "IPv4", "ports": [{"name": "", "port": 80}], "endpoints": endpoints});
            Box::new(Event::Apply(serde_json::from_value(object).unwrap()))
        };
        let (mut sync, mut model) = (InitialSync::default(), Model::default());
        let mut triggers = |event: Box<Event<EndpointSlice>>| -> Vec<String> {
            let _ = sync.apply(Change::Slice(event), &mut model, "n1");
            let told = sync.take_triggers().into_iter().map(|trigger| match trigger {
                Trigger::At(family, service, _) => format!("{} {service}", family.name()),
                Trigger::Forget(service) => format!("forget {service}"),
            });
            told.collect()
        };
        assert_eq!(triggers(slice(&["10.2.2.2"])), ["IPv4 ns/web"]);
        assert_eq!(triggers(slice(&["10.2.2.2"])), [""; 0], "nothing changed");
        let Event::Apply(gone) = *slice(&[]) else { unreachable!() };
        assert_eq!(triggers(Box::new(Event::Delete(gone))), ["forget ns/web"]);
    }
}
