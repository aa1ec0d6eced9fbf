//! The watch of services, for the environment of containers.

use std::{collections::BTreeMap, sync::Arc};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

use crate::pods::container::env::{ServiceEnv, ServiceList};

/// Watches all services until `shutdown`; nothing is published before they were listed once.
pub(super) async fn run(client: Client, tx: watch::Sender<ServiceList>, shutdown: CancellationToken) {
    let mut services = Services::default();
    let all = reflect(Api::<Service>::all(client), watcher::Config::default(), Extent::Many);
    let mut events = Box::pin(all.default_backoff());
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        match event {
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, "failed to watch services; retrying"),
            Ok(Some(event)) => {
                let Some(all) = services.apply(event) else { continue };
                tx.send_if_modified(|old| {
                    let differs = old.as_deref() != Some(&all);
                    if differs {
                        *old = Some(Arc::new(all));
                    }
                    differs
                });
            }
        }
    }
}

/// The services that the watch has reported.
#[derive(Debug, Default)]
struct Services {
    known: BTreeMap<(String, String), ServiceEnv>,
    /// A list in progress; `known` is published until it is complete.
    listed: BTreeMap<(String, String), ServiceEnv>,
    complete: bool,
}

impl Services {
    /// Applies an event; gives all services where it may have changed them.
    fn apply(&mut self, event: watcher::Event<Service>) -> Option<Vec<ServiceEnv>> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                return None;
            }
            watcher::Event::InitApply(service) => {
                upsert(&mut self.listed, &service);
                return None;
            }
            watcher::Event::InitDone => {
                self.known = std::mem::take(&mut self.listed);
                self.complete = true;
            }
            watcher::Event::Apply(service) => upsert(&mut self.known, &service),
            watcher::Event::Delete(service) => drop(self.known.remove(&key(&service))),
        }
        self.complete.then(|| self.known.values().cloned().collect())
    }
}

fn key(service: &Service) -> (String, String) {
    (service.metadata.namespace.clone().unwrap_or_default(), service.metadata.name.clone().unwrap_or_default())
}

fn upsert(map: &mut BTreeMap<(String, String), ServiceEnv>, service: &Service) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, address: &str) -> Service {
        let spec = json!({"clusterIP": address, "ports": [{"port": 443}]});
        serde_json::from_value(json!({"metadata": {"namespace": "default", "name": name}, "spec": spec})).unwrap()
    }

    fn names(all: Option<Vec<ServiceEnv>>) -> Option<Vec<String>> {
        Some(all?.into_iter().map(|s| s.name).collect())
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut services = Services::default();
        assert_eq!(names(services.apply(Init)), None);
        assert_eq!(names(services.apply(InitApply(service("kubernetes", "10.96.0.1")))), None);
        assert_eq!(names(services.apply(InitDone)), Some(vec!["kubernetes".to_owned()]));
        assert_eq!(names(services.apply(InitDone)), Some(vec![]), "an empty list is one");
        services.apply(Apply(service("a", "10.96.0.2")));
        // Listed again: the old list counts until the new one is complete.
        assert_eq!(names(services.apply(Init)), None);
        assert_eq!(names(services.apply(InitApply(service("b", "10.96.0.3")))), None);
        assert_eq!(names(services.apply(InitDone)), Some(vec!["b".to_owned()]));
        assert_eq!(names(services.apply(Apply(service("b", "None")))), Some(vec![]));
        assert_eq!(names(services.apply(Delete(service("b", "None")))), Some(vec![]));
    }
}
