//! The services that pods see in their environment, kept from a watch of the API.

use std::{collections::BTreeMap, sync::Arc};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::env::ServiceEnv;

/// Follows all services until `shutdown`, or until nobody listens.
pub(crate) async fn follow(client: Client, tell: watch::Sender<Arc<Vec<ServiceEnv>>>, shutdown: CancellationToken) {
    let mut known: BTreeMap<(String, String), ServiceEnv> = BTreeMap::new();
    let mut listed: BTreeMap<(String, String), ServiceEnv> = BTreeMap::new();
    let mut events = Box::pin(watcher(Api::<Service>::all(client), watcher::Config::default()).default_backoff());
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        match event {
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "services could not be watched; it is tried again");
                continue;
            }
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitApply(service))) => put(&mut listed, &service),
            Ok(Some(watcher::Event::InitDone)) => known = std::mem::take(&mut listed),
            Ok(Some(watcher::Event::Apply(service))) => put(&mut known, &service),
            Ok(Some(watcher::Event::Delete(service))) => drop(known.remove(&key(&service))),
        }
        if listed.is_empty() {
            let all: Vec<ServiceEnv> = known.values().cloned().collect();
            tell.send_if_modified(|old| {
                let differs = **old != all;
                if differs {
                    *old = Arc::new(all);
                }
                differs
            });
        }
    }
}

fn key(service: &Service) -> (String, String) {
    (service.metadata.namespace.clone().unwrap_or_default(), service.metadata.name.clone().unwrap_or_default())
}

fn put(map: &mut BTreeMap<(String, String), ServiceEnv>, service: &Service) {
    let key = key(service);
    let spec = service.spec.as_ref();
    let address = spec.and_then(|s| s.cluster_ip.clone()).filter(|ip| !ip.is_empty() && ip != "None");
    let Some(address) = address else {
        map.remove(&key);
        return;
    };
    let ports = spec.and_then(|s| s.ports.as_ref()).into_iter().flatten();
    let ports = ports
        .map(|p| (p.name.clone().unwrap_or_default(), p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), p.port))
        .collect();
    let (namespace, name) = key.clone();
    map.insert(key, ServiceEnv { namespace, name, address, ports });
}
