//! Aggregation through the whole API, with an extension API server of its own.

#[path = "../../../tests/extension_server/mod.rs"]
mod extension_server;

mod availability;
mod claims;
mod discovery;
mod proxying;

use std::{collections::BTreeSet, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, Request, header},
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt as _;

use super::api_service::ApiService;
use crate::{
    apiserver::{
        User,
        tests::{Reply, api, call, send},
    },
    control_plane::instance::Instance,
    store::{Expected, Key, Write},
};
use extension_server::{Act, ExtensionServer, GROUP, NAMESPACE, SERVICE};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const THINGS: &str = "/apis/ext.example/v1/namespaces/n/things";

/// An API whose tasks run, and a server that is registered for `v1` of its group.
struct Bed {
    api: Instance,
    server: ExtensionServer,
    _stop: DropGuard,
}

impl Bed {
    /// Without any object of the extension.
    async fn empty() -> Self {
        let api = api();
        let stop = CancellationToken::new();
        let client = kube::Client::new(api.router().layer(axum::Extension(User::internal("test"))), "default");
        let (aggregator, token) = (api.aggregator.clone(), stop.clone());
        tokio::spawn(async move { aggregator.run(client, token).await });
        let bed = Self { api, server: ExtensionServer::start("127.0.0.1").await, _stop: stop.drop_guard() };
        bed.create("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await;
        bed
    }

    /// Registered and available.
    async fn new() -> Self {
        let bed = Self::empty().await;
        bed.serve().await;
        bed.register(GROUP, "v1", (2000, 15)).await;
        bed.until_available("v1.ext.example").await;
        bed
    }

    async fn create(&self, path: &str, object: Value) {
        let made = call(&self.api, "POST", path, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }

    /// Creates the Service and its EndpointSlice. The API takes no endpoint at the loopback device.
    async fn serve(&self) {
        self.create("/api/v1/namespaces/ext/services", ExtensionServer::service()).await;
        self.put_slice(Some(self.server.slice())).await;
    }

    async fn put_slice(&self, slice: Option<Value>) {
        let store = self.api.store();
        let resource = store.resource("endpointslices.discovery.k8s.io");
        let key = Key { namespace: NAMESPACE.to_owned(), name: "api-1".to_owned() };
        let expected = store.get(resource, &key).map_or(Expected::Absent, |old| Expected::Revision(old.revision));
        let write = Write { resource, key, expected, value: slice, guards: Vec::new(), companions: Vec::new() };
        store.write(write).await.unwrap();
    }

    async fn register(&self, group: &str, version: &str, priorities: (i64, i64)) {
        self.create(API_SERVICES, self.server.api_service(group, version, priorities)).await;
    }

    async fn until_available(&self, name: &str) {
        self.until(&format!("{API_SERVICES}/{name}"), |reply| available(&reply.body).0 == "True").await;
    }

    /// Waits until requests go where the APIServices say, which is a moment after these are written.
    async fn until_served(&self) {
        let (store, resource) = (self.api.store(), self.api.aggregator.resource());
        for _ in 0..6000 {
            let stored = store.list(resource, None).0;
            let registered: BTreeSet<_> = stored
                .iter()
                .filter_map(|object| ApiService::read(&object.value()))
                .map(|of| (of.group, of.version, of.is_available))
                .collect();
            let catalog = self.api.api.catalogs().current();
            let served = catalog.extensions.iter().map(|of| (of.group.clone(), of.version.clone(), of.is_available));
            if registered == served.collect() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the catalog did not follow the APIServices");
    }

    /// The reply to a GET once `done` holds.
    async fn until(&self, path: &str, done: impl Fn(&Reply) -> bool) -> Reply {
        for _ in 0..6000 {
            let reply = call(&self.api, "GET", path, Value::Null).await;
            if done(&reply) {
                self.until_served().await;
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let last = call(&self.api, "GET", path, Value::Null).await;
        panic!("{path} did not become what it should: {} {}", last.code, last.body);
    }

    /// The whole answer to a request of a user.
    async fn raw(&self, user: &User, request: Request<Body>) -> (u16, HeaderMap, String) {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(user.clone());
        let answer = self.api.router().oneshot(Request::from_parts(parts, body)).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        (parts.status.as_u16(), parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (code, _, body) = self.raw(&User::internal("test"), Request::get(path).body(Body::empty()).unwrap()).await;
        (code, body)
    }

    /// The groups of the aggregated document.
    async fn groups(&self) -> Vec<Value> {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let list = send(&self.api, &User::internal("t"), "GET", "/apis", "", accept, "").await.body;
        list["items"].as_array().unwrap().clone()
    }

    /// A version of a group in it.
    async fn version(&self, group: &str, version: &str) -> Option<Value> {
        let groups = self.groups().await;
        let found = groups.iter().find(|one| one["metadata"]["name"] == group)?;
        found["versions"].as_array()?.iter().find(|one| one["version"] == version).cloned()
    }

    async fn until_fresh(&self, group: &str, version: &str, freshness: &str) -> Value {
        for _ in 0..6000 {
            let found = self.version(group, version).await.unwrap_or_default();
            if found["freshness"] == freshness {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{group}/{version} did not become {freshness}: {:?}", self.version(group, version).await);
    }
}

/// Status, reason and message of the condition.
fn available(object: &Value) -> (String, String, String) {
    let found = object["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Available");
    let text = |field: &str| found.and_then(|c| c[field].as_str()).unwrap_or("").to_owned();
    (text("status"), text("reason"), text("message"))
}
