//! Watches of the real API server: whichever request fails and whichever event, in whichever way, the model ends as that of
//! a proxy that starts again.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use windlass_control::{apiserver::User, in_memory::InMemory};
use windlass_tests::api_faults::{Faults, Way, with_each_fault};

use super::watch::{InitialSync, changes};
use crate::model::{Family, Model, NodeFacts};

const NODE: &str = "n1";
/// Shorter than the timeout of a watch, after which everything would be asked for again.
const PATIENCE: Duration = Duration::from_secs(120);

fn client(server: &InMemory, faults: Option<Faults>) -> Client {
    Client::new(Way { router: server.router(User::internal("test")), faults }, "default")
}

/// What the watches have delivered.
#[derive(Default)]
struct Known {
    sync: InitialSync,
    model: Model,
    node: Option<NodeFacts>,
}

/// A proxy's model, as its watches fill it.
struct Watching {
    known: Arc<Mutex<Known>>,
    _task: AbortOnDropHandle<()>,
}

impl Watching {
    fn start(client: &Client) -> Self {
        let known: Arc<Mutex<Known>> = Arc::default();
        let (mut told, filled) = (changes(client, NODE, true), Arc::clone(&known));
        let task = tokio::spawn(async move {
            while let Some(change) = told.next().await {
                let mut known = filled.lock();
                let Known { sync, model, node } = &mut *known;
                if let Some(facts) = sync.apply(change, model, NODE).node {
                    *node = facts;
                }
            }
        });
        Self { known, _task: AbortOnDropHandle::new(task) }
    }

    fn is_complete(&self) -> bool {
        self.known.lock().sync.complete()
    }

    /// Nothing waits for these.
    fn has_ranges(&self) -> bool {
        !self.known.lock().model.service_cidrs.of(Family::V4).is_empty()
    }

    /// The node, the ranges of cluster IPs, and all services with their endpoints.
    fn known(&self) -> Vec<String> {
        let known = self.known.lock();
        let model = &known.model;
        let text = |service: &Arc<crate::model::Service>| {
            let of = |family| service.ports.iter().flat_map(move |port| model.endpoints(&service.id, port, family));
            format!("{service:?} {:?}", of(Family::V4).chain(of(Family::V6)).collect::<Vec<_>>())
        };
        let mut all = vec![format!("{:?}", known.node), format!("{:?}", model.service_cidrs)];
        all.extend(model.services().map(|(_, service)| text(service)));
        all
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = tokio::time::Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "never came: {what}; there is {:#?}", self.known());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn service(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

fn slice(service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|ip| json!({"addresses": [ip]})).collect();
    json!({"metadata": {"name": format!("{service}-x"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": endpoints})
}

async fn put<K>(api: &Api<K>, object: Value)
where
    K: kube::Resource + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Creates what exists before the proxy starts, which it receives in its initial lists.
async fn before(services: &Api<Service>, slices: &Api<EndpointSlice>) {
    for (name, address) in [("stays", "10.96.0.20"), ("goes", "10.96.0.21")] {
        put(services, service(name, address)).await;
        put(slices, slice(name, &["10.0.0.1", "10.0.0.2"])).await;
    }
}

async fn meanwhile(user: &Client, services: &Api<Service>, slices: &Api<EndpointSlice>, nodes: &Api<Node>) {
    put(
        &Api::<ServiceCIDR>::all(user.clone()),
        json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}}),
    )
    .await;
    put(services, service("comes", "10.96.0.22")).await;
    put(slices, slice("comes", &["10.0.0.3"])).await;
    let fewer = Patch::Merge(json!({"endpoints": [{"addresses": ["10.0.0.2"]}]}));
    slices.patch("stays-x", &PatchParams::default(), &fewer).await.unwrap();
    services.delete("goes", &DeleteParams::default()).await.unwrap();
    slices.delete("goes-x", &DeleteParams::default()).await.unwrap();
    let zone = Patch::Merge(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}));
    nodes.patch(NODE, &PatchParams::default(), &zone).await.unwrap();
    let port = Patch::Merge(json!({"spec": {"ports": [{"port": 81, "protocol": "TCP"}]}}));
    services.patch("stays", &PatchParams::default(), &port).await.unwrap();
}

async fn after(user: &Client, services: &Api<Service>, slices: &Api<EndpointSlice>, nodes: &Api<Node>) {
    Api::<ServiceCIDR>::all(user.clone()).delete("more", &DeleteParams::default()).await.unwrap();
    for name in ["stays", "comes"] {
        services.delete(name, &DeleteParams::default()).await.unwrap();
        slices.delete(&format!("{name}-x"), &DeleteParams::default()).await.unwrap();
    }
    let no_zone = Patch::Merge(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": null}}}));
    nodes.patch(NODE, &PatchParams::default(), &no_zone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_the_model_is_that_of_a_fresh_start() {
    let server = InMemory::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30099);
    let user = client(&server, None);
    put(&Api::<Namespace>::all(user.clone()), json!({"metadata": {"name": "default"}})).await;
    let (services, slices) = (Api::default_namespaced(user.clone()), Api::default_namespaced(user.clone()));
    let nodes: Api<Node> = Api::all(user.clone());
    put(&nodes, json!({"metadata": {"name": NODE}})).await;
    let (ran, hit) = with_each_fault(async |faults| {
        before(&services, &slices).await;
        let watching = Watching::start(&client(&server, Some(faults.clone())));
        watching.until("the first lists", Watching::is_complete).await;
        meanwhile(&user, &services, &slices, &nodes).await;
        let fresh = Watching::start(&client(&server, None));
        fresh.until("a fresh start", |fresh| fresh.is_complete() && fresh.has_ranges()).await;
        let wanted = fresh.known();
        // The node, the ranges, and two Services.
        assert_eq!(wanted.len(), 4, "{wanted:#?}");
        let what = format!("{:?}: {wanted:#?}", faults.calls().hit);
        watching.until(&what, |watching| watching.known() == wanted).await;
        drop((watching, fresh));
        after(&user, &services, &slices, &nodes).await;
    })
    .await;
    // Four lists, four watches, and some events.
    assert!(ran >= 80 && hit * 10 >= ran * 9, "{hit} of {ran}");
}
