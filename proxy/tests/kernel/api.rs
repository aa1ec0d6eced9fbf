//! The real API server, over a store in memory. Objects are written to it without validation, since the proxy must also
//! handle what this server never returns: addresses of both families, changed ones, or ones shared by two Services.

use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use windlass_control::{apiserver::User, in_memory::InMemory};

#[derive(Clone)]
pub(crate) struct Api(InMemory);

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

impl Default for Api {
    fn default() -> Self {
        let api = Self(InMemory::without_allocation());
        // That of the events of nodes.
        api.put("namespaces", json!({"metadata": {"name": "default"}}));
        api
    }
}

impl Api {
    /// A client whose tasks run where it is made.
    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.0.router(User::internal("system:kube-proxy")), "default")
    }

    pub(crate) fn put(&self, plural: &str, object: Value) {
        runtime().block_on(self.0.put(plural, object));
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        runtime().block_on(self.0.delete(plural, name));
    }
}
