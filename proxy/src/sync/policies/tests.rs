//! Watches of the real API server: whichever request fails and whichever event, in whichever way, what is wanted ends as that
//! of a proxy that starts again.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use windlass_control::{apiserver::User, in_memory::InMemory};
use windlass_tests::api_faults::{Faults, Way, with_each_fault};

use super::watch::{Lists, changes};
use crate::{
    model::Family,
    network_policy::{Cluster, Wanted},
};

const NODE: &str = "n1";
/// Shorter than the timeout of a watch, after which everything would be asked for again.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the watches have delivered.
struct Known {
    lists: Lists,
    cluster: Cluster,
}

struct Watching {
    known: Arc<Mutex<Known>>,
    _task: AbortOnDropHandle<()>,
}

impl Watching {
    fn start(server: &InMemory, faults: Option<Faults>) -> Self {
        let client = Client::new(Way { router: server.router(User::internal("test")), faults }, "default");
        let known = Arc::new(Mutex::new(Known { lists: Lists::default(), cluster: Cluster::new(NODE) }));
        let (mut changes, filled) = (changes(&client), Arc::clone(&known));
        let task = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let mut known = filled.lock();
                let Known { lists, cluster } = &mut *known;
                lists.apply(change, cluster);
            }
        });
        Self { known, _task: AbortOnDropHandle::new(task) }
    }

    fn is_complete(&self) -> bool {
        self.known.lock().lists.are_complete()
    }

    fn wanted(&self) -> Vec<Wanted> {
        self.known.lock().cluster.wanted(&Family::BOTH)
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = tokio::time::Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "never came: {what}; there is {:#?}", self.wanted());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn namespace(name: &str, team: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"team": team}}})
}

fn pod(name: &str, namespace: &str, app: &str, ip: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "spec": {"nodeName": NODE, "containers": []}, "status": {"podIP": ip, "podIPs": [{"ip": ip}]}})
}

fn policy(name: &str, app: &str, team: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "spec": {"podSelector": {"matchLabels": {"app": app}},
        "policyTypes": ["Ingress"], "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": team}}}]}]}})
}

/// What exists before the proxy starts, which it receives in its initial lists.
async fn before(server: &InMemory) {
    for object in [namespace("a", "x"), namespace("b", "y")] {
        server.put("namespaces", object).await;
    }
    for object in
        [pod("web", "a", "web", "10.244.0.5"), pod("db", "a", "db", "10.244.0.6"), pod("job", "b", "job", "fd00::7")]
    {
        server.put("pods", object).await;
    }
    for object in [policy("stays", "web", "y"), policy("goes", "db", "x")] {
        server.put("networkpolicies", object).await;
    }
}

async fn meanwhile(server: &InMemory) {
    server.put("networkpolicies", policy("comes", "new", "z")).await;
    server.delete("networkpolicies", "goes").await;
    server.put("networkpolicies", policy("stays", "web", "z")).await;
    server.put("namespaces", namespace("b", "z")).await;
    server.put("pods", pod("db", "a", "new", "10.244.0.6")).await;
    server.put("pods", pod("more", "b", "job", "10.244.0.8")).await;
    server.delete("pods", "job").await;
}

async fn after(server: &InMemory) {
    for name in ["stays", "comes"] {
        server.delete("networkpolicies", name).await;
    }
    for name in ["web", "db", "more"] {
        server.delete("pods", name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_what_is_wanted_is_that_of_a_fresh_start() {
    let server = InMemory::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30099);
    let (ran, hit) = with_each_fault(async |faults| {
        before(&server).await;
        let watching = Watching::start(&server, Some(faults.clone()));
        watching.until("the first lists", Watching::is_complete).await;
        meanwhile(&server).await;
        let fresh = Watching::start(&server, None);
        fresh.until("a fresh start", Watching::is_complete).await;
        let wanted = fresh.wanted();
        // A set of pods, two profiles with theirs, and the pods themselves.
        assert_eq!((wanted[0].chains.len(), wanted[0].sets.0.len()), (3, 4), "{wanted:#?}");
        let what = format!("{:?}: {wanted:#?}", faults.calls().hit);
        watching.until(&what, |watching| watching.wanted() == wanted).await;
        drop((watching, fresh));
        after(&server).await;
    })
    .await;
    // Three lists, three watches, and some events.
    assert!(ran >= 60 && hit * 5 >= ran * 4, "{hit} of {ran}");
}
