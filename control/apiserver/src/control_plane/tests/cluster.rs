//! The controllers with the embedded API, for tests of what they write.

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api as KubeApi, Client, Resource,
    api::{ListParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{super::ControlPlane, config::config};
use crate::apiserver::User;

pub(super) struct Cluster {
    pub(super) plane: ControlPlane,
    pub(super) client: Client,
    as_controllers: Client,
    config: windlass_controllers::Config,
    stop: CancellationToken,
    running: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

fn start(client: Client, config: windlass_controllers::Config, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move { windlass_controllers::run(client, config, stop).await.unwrap() })
}

impl Cluster {
    pub(super) async fn new() -> Self {
        Self::with(windlass_controllers::Config::default()).await
    }

    pub(super) async fn with(controllers: windlass_controllers::Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plane = ControlPlane::open(config(folder.path())).await.unwrap();
        let (client, stop) = (plane.client(User::internal("t")), CancellationToken::new());
        let as_controllers = plane.client(User::internal("system:kube-controller-manager"));
        let running = start(as_controllers.clone(), controllers.clone(), stop.clone());
        Self { plane, client, as_controllers, config: controllers, stop, running, _folder: folder }
    }

    /// Ends the controllers wherever they are, and starts others.
    pub(super) fn restart(&mut self) {
        self.running.abort();
        self.stop.cancel();
        self.stop = CancellationToken::new();
        self.running = start(self.as_controllers.clone(), self.config.clone(), self.stop.clone());
    }

    pub(super) fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> KubeApi<K> {
        KubeApi::namespaced(self.client.clone(), "default")
    }

    pub(super) async fn create<K>(&self, object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone,
        K: std::fmt::Debug,
    {
        self.api::<K>().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// Waits until `check` holds for all objects of a kind.
    pub(super) async fn until<K>(&self, what: &str, check: impl Fn(&[Value]) -> bool) -> Vec<Value>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone,
        K: std::fmt::Debug,
    {
        let mut all = Vec::new();
        for _ in 0..6000 {
            let listed = self.api::<K>().list(&ListParams::default()).await.unwrap();
            all = listed.items.iter().map(|object| serde_json::to_value(object).unwrap()).collect();
            if check(&all) {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never came: {what}; there is {all:#?}");
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}
