//! What tests of controllers, scheduler and manifests stand on: the real API server over a store in memory, and what can go
//! wrong on the way to it.

use std::{net::Ipv4Addr, time::Duration};

use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_control::{apiserver::User, in_memory::InMemory};
use windlass_store::{Expected, Key, ResourceId, Watch, Write};
use windlass_tests::api_faults::{Faults, RequestFault, Way};

/// How long a test waits, on tokio's clock. Shorter than whatever mends what was missed: the five minutes after which
/// expectations are forgotten and quotas are counted again, and the hour of a replay.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The namespaces of every cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// An API server in this process.
#[derive(Debug, Clone)]
pub struct TestApi {
    server: InMemory,
    pub faults: Faults,
}

impl TestApi {
    /// An API server with what every cluster has.
    pub async fn new() -> Self {
        let server = InMemory::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30099);
        let api = Self { server, faults: Faults::default() };
        for name in NAMESPACES {
            put(&Api::<k8s_openapi::api::core::v1::Namespace>::all(api.user()), json!({"metadata": {"name": name}}))
                .await;
        }
        let ready = json!({"type": "Ready", "status": "True", "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/24"]},
            "status": {"conditions": [ready]}});
        put(&Api::<k8s_openapi::api::networking::v1::ServiceCIDR>::all(api.user()), range).await;
        api
    }

    fn of(&self, user: User, faults: Option<Faults>) -> Client {
        Client::new(Way { router: self.server.router(user), faults }, "default")
    }

    /// The same for those who start in place of others that a fault has ended.
    pub fn reborn(&self) -> Self {
        Self { faults: self.faults.reborn(), ..self.clone() }
    }

    /// A client with all rights, of which requests are numbered and fail.
    pub fn client(&self) -> Client {
        self.of(User::internal("system:kube-controller-manager"), Some(self.faults.clone()))
    }

    /// A client with all rights for which nothing goes wrong.
    pub fn user(&self) -> Client {
        self.as_user(User::internal("test"))
    }

    /// The same for another user.
    pub fn as_user(&self, user: User) -> Client {
        self.of(user, None)
    }

    fn id(&self, plural: &str) -> ResourceId {
        self.server.id(plural)
    }

    /// All stored objects of a type, ordered by namespace and name.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        self.server.store().list(self.id(plural), None).0.iter().map(|object| object.value()).collect()
    }

    /// The changes of a type from now on.
    pub fn watch(&self, plural: &str) -> Watch {
        let store = self.server.store();
        store.watch(self.id(plural), store.revision()).expect("the present revision")
    }

    /// All changes of some types so far, in their order: plural and watch event.
    pub async fn history(&self, plurals: &[&str]) -> Vec<(String, Value)> {
        let store = self.server.store();
        let (now, mut all) = (store.revision(), Vec::new());
        for plural in plurals {
            let mut watch = store.watch(self.id(plural), 0).expect("all of history");
            while watch.revision() < now {
                for event in watch.next().await.expect("an open store") {
                    let kind = if event.deleted { "DELETED" } else { "CHANGED" };
                    let change = json!({"type": kind, "object": event.object.value()});
                    all.push((event.object.revision, ((*plural).to_owned(), change)));
                }
            }
        }
        all.sort_by_key(|(revision, _)| *revision);
        all.into_iter().map(|(_, change)| change).collect()
    }

    /// Waits until `check` holds for the objects of a type.
    pub async fn until(&self, plural: &str, what: &str, check: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut changes = self.watch(plural);
        let waiting = async {
            loop {
                let all = self.all(plural);
                if check(&all) {
                    return all;
                }
                changes.next().await.expect("an open store");
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(all) => all,
            Err(_) => {
                let hit = self.faults.calls().hit;
                panic!("never came: {what}, after {hit:?} failed; there is {:#?}", self.all(plural))
            }
        }
    }

    /// Waits until clients ask for nothing any more.
    pub async fn rest(&self) {
        let (mut before, mut quiet) = (usize::MAX, 0);
        while quiet < 3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let now = self.faults.activity();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
    }

    /// Backdates an object, which the API does not allow.
    pub async fn backdate(&self, plural: &str, namespace: &str, name: &str, to: &str) {
        let (store, resource) = (self.server.store(), self.id(plural));
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let stored = store.get(resource, &key).expect("the object is there");
        let mut value = stored.value();
        value["metadata"]["creationTimestamp"] = json!(to);
        let expected = Expected::Revision(stored.revision);
        let write = Write { resource, key, expected, value: Some(value), guards: Vec::new(), companions: Vec::new() };
        store.write(write).await.expect("nobody else writes it");
    }

    /// Serves CustomResourceDefinitions until the guard is dropped.
    pub fn serve_custom_resources(&self) -> DropGuard {
        let stop = CancellationToken::new();
        tokio::spawn(self.server.clone().serve_custom_resources(self.user(), stop.clone()));
        stop.drop_guard()
    }

    /// Changes whenever other types are served.
    pub fn served_types(&self) -> tokio::sync::watch::Receiver<u64> {
        self.server.served_types()
    }

    /// Defines [`widgets`], and waits until they are served.
    pub async fn define_widgets(&self) {
        let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector"});
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": scale}});
        let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
            "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]}});
        put(&Api::<CustomResourceDefinition>::all(self.user()), definition).await;
        let established = |all: &[Value]| {
            let conditions = all[0]["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
        };
        self.until("customresourcedefinitions", "widgets are served", established).await;
    }

    pub fn requests(&self, method: Method, plural: &str) -> usize {
        self.faults.requests(&method, plural)
    }

    pub fn refuse(&self, plural: &str, why: Option<&str>) {
        self.faults.refuse(plural, why);
    }

    /// The next such request is carried out, and its answer lost.
    pub fn lose_answer(&self, method: Method, kind: &str) {
        self.faults.fail(method, kind, RequestFault::AnswerLost, 1);
    }
}

/// A type that only [`TestApi::define_widgets`] makes known.
pub fn widgets() -> ApiResource {
    ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Widget".into(),
        plural: "widgets".into(),
    }
}

/// Makes an object, and then, as who reports it does, its status.
pub async fn put<K>(api: &Api<K>, value: Value) -> K
where
    K: Resource + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let status = value.get("status").cloned();
    let object: K = serde_json::from_value(value.clone()).expect("an object of the type");
    let made = api.create(&PostParams::default(), &object).await.unwrap_or_else(|why| panic!("{why}: {value}"));
    let Some(status) = status else { return made };
    let patch = kube::api::Patch::Merge(json!({"status": status}));
    let name = made.meta().name.clone().expect("a name");
    api.patch_status(&name, &kube::api::PatchParams::default(), &patch).await.expect("a status is taken")
}
