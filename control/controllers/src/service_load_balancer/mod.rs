//! Load balancers of the nodes' own addresses: a service of type LoadBalancer without a class, or with the class
//! `windlass.io/node-addresses`, gets the addresses of the nodes that are ready, as with the service load balancer of k3s.
//! kube-proxy's rules for load balancer addresses do the rest. Two services cannot have one port of an address, and none has a
//! host port of a pod or a port of the node's own servers. `plan` and `messages` decide and are pure.

mod messages;
mod plan;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{LoadBalancerIngress, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    finalizers,
    indexes::service_of,
    runtime::{
        Cache, CachedNode, CachedPod, Context, Controller, During as _, Error, Index, Key, Live, Outcome, WorkQueue,
        error,
    },
};
use plan::{NodeFacts, Step, Surroundings, host_ports, ingress, is_balanced, is_local, ports};

/// Services with a load balancer of this controller, by the number of each port.
const BALANCED_BY_PORT: Index<Service> = Index::new("load balancer port", |service| {
    let ports = if is_balanced(service) { ports(service) } else { BTreeSet::new() };
    ports.iter().map(|port| port.number.to_string()).collect::<BTreeSet<_>>().into_iter().collect()
});
/// All of them.
const BALANCED: Index<Service> =
    Index::new("load balancer", |service| is_balanced(service).then(String::new).into_iter().collect());
/// Pods by the number of each host port.
const PODS_BY_HOST_PORT: Index<CachedPod> = Index::new("host port", |pod| {
    host_ports(pod).iter().map(|port| port.number.to_string()).collect::<BTreeSet<_>>().into_iter().collect()
});
/// Slices of any origin by their service, as `namespace/service`.
const SLICES: Index<EndpointSlice> =
    Index::new("service name", |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());

pub(crate) struct ServiceLoadBalancerController {
    client: Client,
    services: Cache<Service>,
    nodes: Cache<CachedNode>,
    pods: Cache<CachedPod>,
    slices: Cache<EndpointSlice>,
    /// Ports of the node's own servers.
    reserved: Vec<u16>,
    recorder: Recorder,
}

fn enqueue_all(queue: &WorkQueue<Key>, services: &[Arc<Service>]) {
    services.iter().for_each(|service| queue.add(Key::of(&service.metadata)));
}

impl Controller for ServiceLoadBalancerController {
    const NAME: &'static str = "service-lb-controller";
    type Key = Key;
    /// Ports of the node's own servers.
    type Config = Vec<u16>;

    fn subscribe(context: &mut Context<Key>, reserved: Vec<u16>) -> Self {
        let (services, nodes) = (context.informer::<Service>(), context.informer::<CachedNode>());
        let (pods, slices) = (context.informer::<CachedPod>(), context.informer::<EndpointSlice>());
        services.index(&BALANCED_BY_PORT).index(&BALANCED);
        pods.index(&PODS_BY_HOST_PORT);
        slices.index(&SLICES);
        let (queue, cache) = (context.queue(), services.cache());
        services.on_change(move |old, new| {
            let Some(service) = new.or(old) else { return };
            if [old, new].into_iter().flatten().any(|s| is_balanced(s) || !ingress(s).is_empty() || is_held(s)) {
                queue.add(Key::of(&service.metadata));
            }
            // What it has given up, another may get.
            let had = old.filter(|s| is_balanced(s)).map(|s| ports(s)).unwrap_or_default();
            let has = new.filter(|s| is_balanced(s)).map(|s| ports(s)).unwrap_or_default();
            for port in had.symmetric_difference(&has) {
                enqueue_all(&queue, &cache.by_index(&BALANCED_BY_PORT, &port.number.to_string()));
            }
        });
        let (queue, cache) = (context.queue(), services.cache());
        nodes.on_change(move |old, new| {
            let facts = |node: Option<&Arc<CachedNode>>| node.map(|node| NodeFacts::of(node));
            if facts(old) != facts(new) {
                enqueue_all(&queue, &cache.by_index(&BALANCED, ""));
            }
        });
        let (queue, cache) = (context.queue(), services.cache());
        pods.on_change(move |old: Option<&Arc<CachedPod>>, new: Option<&Arc<CachedPod>>| {
            let ports = |pod: Option<&Arc<CachedPod>>| pod.map(|pod| host_ports(pod)).unwrap_or_default();
            for port in ports(old).symmetric_difference(&ports(new)) {
                enqueue_all(&queue, &cache.by_index(&BALANCED_BY_PORT, &port.number.to_string()));
            }
        });
        let (queue, cache) = (context.queue(), services.cache());
        slices.on_change(move |old, new| {
            for key in [old, new].into_iter().flatten().filter_map(|slice| service_of(slice)) {
                if cache.get(&key).is_some_and(|service| is_balanced(&service) && is_local(&service)) {
                    queue.add(key);
                }
            }
        });
        Self {
            client: context.client(),
            services: services.cache(),
            nodes: nodes.cache(),
            pods: pods.cache(),
            slices: slices.cache(),
            reserved,
            recorder: context.recorder("service-controller"),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(service) = self.services.get(&key) else { return Ok(Outcome::Done) };
        match self.decide(&key, &service) {
            Step::Leave => self.release(&service).await?,
            Step::Clear => {
                self.tell(&service, messages::DELETING);
                self.write(&service, &[]).await?;
                self.tell(&service, messages::DELETED);
                self.release(&service).await?;
            }
            Step::Pend(reason, message) => {
                self.recorder.record(&object_ref::of(&*service), Severity::Warning, reason, message);
                self.write(&service, &[]).await?;
            }
            Step::Publish(addresses) if addresses == ingress(&service) => {}
            Step::Publish(addresses) => {
                let is_new = ingress(&service).is_empty();
                if is_new {
                    self.tell(&service, messages::ENSURING);
                }
                self.write(&service, &addresses).await?;
                self.tell(&service, if is_new { messages::ENSURED } else { messages::UPDATED });
            }
        }
        Ok(Outcome::Done)
    }
}

/// Whether a service is held by a load balancer of an earlier life, in another cluster.
fn is_held(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|f| f == plan::FINALIZER)
}

impl ServiceLoadBalancerController {
    fn decide(&self, key: &Key, service: &Service) -> Step {
        if !is_balanced(service) {
            return plan::decide(service, &Surroundings::default());
        }
        let numbers: BTreeSet<String> = ports(service).iter().map(|port| port.number.to_string()).collect();
        let mut services: Vec<Arc<Service>> =
            numbers.iter().flat_map(|number| self.services.by_index(&BALANCED_BY_PORT, number)).collect();
        services.retain(|other| Key::of(&other.metadata) != *key);
        let pods: Vec<Arc<CachedPod>> =
            numbers.iter().flat_map(|number| self.pods.by_index(&PODS_BY_HOST_PORT, number)).collect();
        let slices = if is_local(service) { self.slices.by_index(&SLICES, &key.to_string()) } else { Vec::new() };
        let around = Surroundings {
            nodes: self.nodes.all().iter().map(|node| NodeFacts::of(node)).collect(),
            local: plan::nodes_with_endpoints(slices.iter().map(AsRef::as_ref)),
            services: services.iter().map(AsRef::as_ref).collect(),
            pods: pods.iter().map(AsRef::as_ref).collect(),
            reserved: &self.reserved,
        };
        plan::decide(service, &around)
    }

    /// Writes the addresses, unless the service has them or has changed meanwhile.
    async fn write(&self, service: &Service, addresses: &[LoadBalancerIngress]) -> Result<(), Error> {
        if ingress(service) == addresses {
            return Ok(());
        }
        let key = Key::of(&service.metadata);
        let wanted = (!addresses.is_empty()).then_some(addresses);
        let patch = json!({"metadata": {"resourceVersion": service.metadata.resource_version},
            "status": {"loadBalancer": {"ingress": wanted}}});
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        error::written(answer, "write the status of the service", &key).map(drop)
    }

    /// A service that is being deleted or wants no load balancer any more needs no clean-up here.
    async fn release(&self, service: &Service) -> Result<(), Error> {
        let class = service.spec.as_ref().and_then(|s| s.load_balancer_class.as_deref());
        if !is_held(service) || class.is_some_and(|class| class != plan::CLASS) {
            return Ok(());
        }
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let (key, is_other) = (Key::of(&service.metadata), |live: &Service| live.metadata.uid != service.metadata.uid);
        let live = Live::get(&api, &key.name).await.during("look at the service", &key)?;
        // The version that was seen is written: one that wants a load balancer again is another.
        match live.shows(|live| !live.as_ref().is_some_and(is_other)) {
            Some(proof) => finalizers::let_go(&api, service, plan::FINALIZER, proof).await,
            None => Ok(()),
        }
    }

    fn tell(&self, service: &Service, (reason, message): (&str, &str)) {
        self.recorder.record(&object_ref::of(service), Severity::Normal, reason, message);
    }
}
