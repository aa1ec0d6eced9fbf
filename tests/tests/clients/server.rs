//! The server that all clients share, and the objects that they send.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU8, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, eventually};

const OBJECTS: &str = include_str!("../../clients/objects.yaml");
const DEFINITION: &str = include_str!("../../clients/definition.yaml");

/// `apiVersion` and `kind`.
type Type = (String, String);

/// A running server. Fields are dropped in this order: the server before its testbed.
pub(crate) struct Server {
    daemon: Mutex<Daemon>,
    pub(crate) testbed: Testbed,
    /// The types that can be created and watched.
    served: BTreeSet<Type>,
    /// How many clients were given objects.
    clients: AtomicU8,
}

impl Server {
    /// Starts the API without a node, with a custom resource.
    pub(crate) fn start() -> Self {
        let testbed = Testbed::without_docker();
        let windlass = testbed.windlass();
        let daemon = windlass.api_alone();
        let kubectl = windlass.kubectl();
        kubectl.apply(DEFINITION);
        let _ = kubectl.run(&["wait", "--for=condition=Established", "crd/samples.clients.example.com"]);
        let served = eventually(DEFAULT_TIMEOUT, "discovery shows the custom resource", || {
            let served = discover(&kubectl)?;
            anyhow::ensure!(served.iter().any(|(_, kind)| kind == "Sample"), "it has {served:?}");
            Ok(served)
        });
        drop(windlass);
        Self { daemon: Mutex::new(daemon), testbed, served, clients: AtomicU8::new(0) }
    }

    pub(crate) fn kubectl(&self) -> Kubectl<'_> {
        self.testbed.windlass().kubectl()
    }

    /// The objects of a client, one of every served type, and the namespace of this name for them.
    pub(crate) fn objects(&self, client: &str) -> Vec<Value> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": client}}).to_string();
        self.kubectl().apply(&namespace);
        let number = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        let mut objects = read_objects(client, number);
        objects.retain(|object| self.served.contains(&type_of(object)));
        objects
    }

    /// There is an object for every type that discovery shows: a new type is tested with all clients.
    pub(crate) fn check_objects(&self) {
        assert!(self.daemon.lock().runs());
        let known: BTreeSet<Type> = read_objects("known", 0).iter().map(type_of).collect();
        let missing: Vec<&Type> = self.served.difference(&known).collect();
        assert!(missing.is_empty(), "tests/clients/objects.yaml has no object of {missing:?}");
        assert!(self.served.len() > 15, "discovery shows {:?}", self.served);
    }
}

/// The objects, with the name and number of a client.
pub(crate) fn read_objects(client: &str, number: u8) -> Vec<Value> {
    let text = OBJECTS.replace("CLIENT", client).replace("NUMBER", &number.to_string());
    let parse = |document: &str| serde_saphyr::from_str(document).expect("objects.yaml is YAML");
    text.split("\n---\n").map(parse).collect()
}

fn type_of(object: &Value) -> Type {
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    (text("apiVersion"), text("kind"))
}

/// The types that discovery shows and that can be created and watched.
fn discover(kubectl: &Kubectl<'_>) -> anyhow::Result<BTreeSet<Type>> {
    let get =
        |path: &str| -> anyhow::Result<Value> { Ok(serde_json::from_str(&kubectl.try_run(&["get", "--raw", path])?)?) };
    let each = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mut versions = vec!["v1".to_owned()];
    for group in each(&get("/apis")?["groups"]) {
        versions.extend(each(&group["versions"]).iter().filter_map(|v| Some(v["groupVersion"].as_str()?.to_owned())));
    }
    let mut types = BTreeSet::new();
    for version in versions {
        let path = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
        for resource in each(&get(&path)?["resources"]) {
            let verbs = each(&resource["verbs"]);
            let can = |verb: &str| verbs.iter().any(|known| known == verb);
            let is_subresource = resource["name"].as_str().is_some_and(|name| name.contains('/'));
            if !is_subresource && can("create") && can("watch") {
                types.insert((version.clone(), resource["kind"].as_str().unwrap_or_default().to_owned()));
            }
        }
    }
    Ok(types)
}
