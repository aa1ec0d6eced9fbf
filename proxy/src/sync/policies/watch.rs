//! Lists and watches of NetworkPolicies, namespaces and pods as one stream of changes, and how these are applied.

use std::{collections::BTreeSet, sync::Arc};

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client, Resource,
    runtime::watcher::{self, Event},
};
use windlass_kit::reflector::Extent;

use super::super::watch::watch;
use crate::network_policy::{
    Cluster,
    objects::{Namespace, NetworkPolicy, Pod},
};

/// What does not work where a watch is forbidden.
const CONSEQUENCE: &str = "no pod starts on this node, for it is not known which NetworkPolicies select it";

/// An event of one of the watches.
#[derive(Debug)]
pub(in crate::sync) enum Change {
    Policy(Box<Event<NetworkPolicy>>),
    Namespace(Box<Event<Namespace>>),
    Pod(Box<Event<Pod>>),
}

/// All watches; errors are logged and retried with back-off, so the stream never ends.
pub(in crate::sync) fn changes(client: &Client) -> impl Stream<Item = Change> + Send + Unpin + use<> {
    let any = || watcher::Config::default().any_semantic();
    let policies = watch::<NetworkPolicy>(client, any(), Extent::Many, "network policies", CONSEQUENCE);
    let namespaces = watch::<Namespace>(client, any(), Extent::Many, "namespaces", CONSEQUENCE);
    let pods = watch::<Pod>(client, any(), Extent::Many, "pods", CONSEQUENCE);
    stream::select_all([
        policies.map(|e| Change::Policy(Box::new(e))).boxed(),
        namespaces.map(|e| Change::Namespace(Box::new(e))).boxed(),
        pods.map(|e| Change::Pod(Box::new(e))).boxed(),
    ])
}

type Ids = BTreeSet<(Arc<str>, Arc<str>)>;

/// One kind's lists.
#[derive(Debug, Default)]
struct Listing {
    /// What the list in progress has so far.
    listed: Option<Ids>,
    is_complete: bool,
}

impl Listing {
    fn apply<K: Resource>(
        &mut self,
        event: Event<K>,
        cluster: &mut Cluster,
        put: fn(&mut Cluster, &K),
        delete: fn(&mut Cluster, &ObjectMeta),
        retain: fn(&mut Cluster, &Ids),
    ) {
        match event {
            Event::Init => self.listed = Some(Ids::new()),
            Event::InitApply(object) => {
                self.listed.iter_mut().for_each(|listed| _ = listed.insert(Cluster::key(object.meta())));
                put(cluster, &object);
            }
            Event::Apply(object) => put(cluster, &object),
            Event::Delete(object) => delete(cluster, object.meta()),
            Event::InitDone => {
                self.is_complete = true;
                if let Some(listed) = self.listed.take() {
                    retain(cluster, &listed);
                }
            }
        }
    }
}

/// Which initial lists are complete, and the objects of lists in progress.
#[derive(Debug, Default)]
pub(in crate::sync) struct Lists {
    policies: Listing,
    namespaces: Listing,
    pods: Listing,
}

impl Lists {
    /// Whether all initial lists are complete, so that it is known what policies there are.
    pub(in crate::sync) const fn are_complete(&self) -> bool {
        self.policies.is_complete && self.namespaces.is_complete && self.pods.is_complete
    }

    pub(in crate::sync) fn apply(&mut self, change: Change, cluster: &mut Cluster) {
        match change {
            Change::Policy(event) => self.policies.apply(
                *event,
                cluster,
                Cluster::put_policy,
                Cluster::delete_policy,
                Cluster::retain_policies,
            ),
            Change::Namespace(event) => self.namespaces.apply(
                *event,
                cluster,
                Cluster::put_namespace,
                Cluster::delete_namespace,
                Cluster::retain_namespaces,
            ),
            Change::Pod(event) => {
                self.pods.apply(*event, cluster, Cluster::put_pod, Cluster::delete_pod, Cluster::retain_pods);
            }
        }
    }
}
