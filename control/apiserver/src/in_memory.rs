//! The API server over a store in memory, for tests of the other crates, which are its clients. Nothing is bootstrapped, and no
//! controller runs.

use std::{net::Ipv4Addr, ops::RangeInclusive, sync::Arc};

use axum::{Extension, Router};
use futures::future::poll_immediate;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    apiextensions::CustomResources,
    apiserver::{User, generate::new_uid, types::Version},
    control_plane::instance::{ApiConfig, Instance},
    kinds,
    store::{Allocation, AllocationError, Allocator, Expected, Key, Memory, Object, ResourceId, Store, Write},
};

/// An API server; clones are the same.
#[derive(Debug, Clone)]
pub struct InMemory {
    instance: Instance,
}

impl InMemory {
    /// A server without objects, which gives these cluster IPs and node ports.
    ///
    /// # Panics
    /// Never: there is nothing to read.
    #[must_use]
    pub fn new(service_cidr: (Ipv4Addr, u8), node_ports: RangeInclusive<u16>) -> Self {
        let store = kinds::open_store(Box::new(Memory::default())).expect("an empty store");
        let instance = Instance::new(&store, &ApiConfig::new(service_cidr, node_ports), None, None);
        Self { instance }
    }

    /// A server that stores the addresses and node ports of Services as written, and allocates none: also those that it
    /// would never allocate, such as addresses of both families.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn without_allocation() -> Self {
        let server = Self::new((Ipv4Addr::new(10, 96, 0, 0), 16), 30000..=32767);
        server.store().set_allocator(server.id("services"), Arc::new(AsWritten));
        server
    }

    /// The way to it for `user`.
    pub fn router(&self, user: User) -> Router {
        self.instance.api.router().layer(Extension(user))
    }

    /// Writes an object, new or in place of another one, as it is: nothing is checked, defaulted or counted.
    ///
    /// # Panics
    /// When no such type is stored.
    pub async fn put(&self, plural: &str, mut object: Value) {
        let version = self.version(plural);
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (resource, key) = (self.id(plural), Key { namespace: text("namespace"), name: text("name") });
        let stored = self.store().get(resource, &key);
        let uid = stored.as_ref().map(|stored| stored.value()["metadata"]["uid"].clone());
        object["apiVersion"] = json!(version.gvk.api_version());
        object["kind"] = json!(version.gvk.kind);
        object["metadata"]["uid"] = uid.unwrap_or_else(|| json!(new_uid().expect("random numbers")));
        let expected = stored.map_or(Expected::Absent, |stored| Expected::Revision(stored.revision));
        self.write(resource, key, expected, Some(object)).await;
    }

    /// Deletes the objects of a type that have this name, at once.
    ///
    /// # Panics
    /// When no such type is stored.
    pub async fn delete(&self, plural: &str, name: &str) {
        let resource = self.id(plural);
        for object in self.store().list(resource, None).0.into_iter().filter(|object| object.key.name == name) {
            self.write(resource, object.key.clone(), Expected::Revision(object.revision), None).await;
        }
    }

    async fn write(&self, resource: ResourceId, key: Key, expected: Expected, value: Option<Value>) {
        let write = Write { resource, key, expected, value, guards: Vec::new(), companions: Vec::new() };
        // The store's own thread is no task of a clock that is paused: it would jump while this one waited.
        let mut writing = std::pin::pin!(self.store().write(write));
        loop {
            if let Some(written) = poll_immediate(&mut writing).await {
                written.expect("nobody else writes, and memory does not fail");
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The store, to inspect it or to change it in ways that the API does not allow.
    pub fn store(&self) -> &Store {
        self.instance.api.store()
    }

    /// Serves CustomResourceDefinitions until `shutdown`, as a client that may do everything.
    pub async fn serve_custom_resources(self, client: kube::Client, shutdown: CancellationToken) {
        CustomResources::load(&self.instance.api, &self.instance.conversion_webhooks).run(client, shutdown).await;
    }

    /// Changes whenever other types are served.
    pub fn served_types(&self) -> watch::Receiver<u64> {
        self.instance.api.catalogs().served_types()
    }

    /// The version of a type in which it is stored.
    fn version(&self, plural: &str) -> Arc<Version> {
        let catalog = self.instance.api.catalogs().current();
        let found = catalog.all().find(|version| *version.plural == *plural && version.is_stored_form()).cloned();
        found.unwrap_or_else(|| panic!("{plural} are not stored"))
    }

    /// The resource of a type.
    ///
    /// # Panics
    /// When no such type is stored.
    pub fn id(&self, plural: &str) -> ResourceId {
        let catalog = self.instance.api.catalogs().current();
        let found = catalog.all().filter(|version| *version.plural == *plural).find_map(|version| version.id());
        found.unwrap_or_else(|| panic!("{plural} are not stored"))
    }
}

/// Allocates nothing and refuses nothing.
#[derive(Debug)]
struct AsWritten;

impl Allocator for AsWritten {
    fn allocate(&self, _: Option<&mut Value>, _: Option<&Object>) -> Result<Allocation, AllocationError> {
        Ok(Allocation::default())
    }
}
