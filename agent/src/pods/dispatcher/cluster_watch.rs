//! Watches of what all pods share: services, for the environment of containers, and runtime classes, for sandboxes.
//! What is known stays while the API is away.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::TryStreamExt as _;
use k8s_openapi::api::{core::v1::Service, node::v1::RuntimeClass};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

use crate::pods::{container::env::ServiceEnv, steps::runtime_class::RuntimeHandler};

/// Watches all objects of a type until `shutdown`, and publishes what `read` makes of each; nothing is published before
/// they were listed once.
pub(super) async fn run<K, V>(
    api: Api<K>,
    read: fn(&K) -> Option<V>,
    tx: watch::Sender<Option<Arc<Vec<V>>>>,
    shutdown: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Clone + PartialEq,
{
    let mut known = Known::new(read);
    let mut events = Box::pin(reflect(api, watcher::Config::default(), Extent::Many).default_backoff());
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        match event {
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, kind = %K::kind(&()), "failed to watch objects; retrying"),
            Ok(Some(event)) => {
                let Some(all) = known.apply(event) else { continue };
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

type Key = (Option<String>, String);

/// The objects that a watch has reported.
#[derive(Debug)]
struct Known<K, V> {
    read: fn(&K) -> Option<V>,
    known: BTreeMap<Key, V>,
    /// A list in progress; `known` is published until it is complete.
    listed: BTreeMap<Key, V>,
    complete: bool,
}

impl<K: Resource<DynamicType = ()>, V: Clone> Known<K, V> {
    fn new(read: fn(&K) -> Option<V>) -> Self {
        Self { read, known: BTreeMap::new(), listed: BTreeMap::new(), complete: false }
    }

    /// Applies an event; gives all objects where it may have changed them.
    fn apply(&mut self, event: watcher::Event<K>) -> Option<Vec<V>> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                return None;
            }
            watcher::Event::InitApply(object) => {
                upsert(&mut self.listed, &object, self.read);
                return None;
            }
            watcher::Event::InitDone => {
                self.known = std::mem::take(&mut self.listed);
                self.complete = true;
            }
            watcher::Event::Apply(object) => upsert(&mut self.known, &object, self.read),
            watcher::Event::Delete(object) => drop(self.known.remove(&key(&object))),
        }
        self.complete.then(|| self.known.values().cloned().collect())
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    (object.namespace(), object.name_any())
}

fn upsert<K: Resource<DynamicType = ()>, V>(map: &mut BTreeMap<Key, V>, object: &K, read: fn(&K) -> Option<V>) {
    match read(object) {
        Some(value) => drop(map.insert(key(object), value)),
        None => drop(map.remove(&key(object))),
    }
}

/// A Service's environment variables; `None` without a cluster IP.
pub(super) fn service(service: &Service) -> Option<ServiceEnv> {
    let spec = service.spec.as_ref()?;
    let address = spec.cluster_ip.clone().filter(|ip| !ip.is_empty() && ip != "None")?;
    let ports = spec.ports.iter().flatten();
    let ports = ports
        .map(|p| (p.name.clone().unwrap_or_default(), p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), p.port))
        .collect();
    Some(ServiceEnv { namespace: service.namespace().unwrap_or_default(), name: service.name_any(), address, ports })
}

/// What sandboxes need of a runtime class.
pub(super) fn runtime_handler(class: &RuntimeClass) -> Option<RuntimeHandler> {
    Some(RuntimeHandler { class: class.name_any(), handler: class.handler.clone() })
}

#[cfg(test)]
mod tests {
    use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
    use serde_json::json;
    use tokio_util::task::AbortOnDropHandle;
    use windlass_tests::api_faults::with_each_fault;

    use super::*;
    use crate::test_api::{self, PATIENCE};

    fn object(name: &str, address: &str) -> Service {
        let spec = json!({"clusterIP": address, "ports": [{"port": 443}]});
        serde_json::from_value(json!({"metadata": {"namespace": "default", "name": name}, "spec": spec})).unwrap()
    }

    fn names(all: Option<Vec<ServiceEnv>>) -> Option<Vec<String>> {
        Some(all?.into_iter().map(|s| s.name).collect())
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut services = Known::new(service);
        assert_eq!(names(services.apply(Init)), None);
        assert_eq!(names(services.apply(InitApply(object("kubernetes", "10.96.0.1")))), None);
        assert_eq!(names(services.apply(InitDone)), Some(vec!["kubernetes".to_owned()]));
        assert_eq!(names(services.apply(InitDone)), Some(vec![]), "an empty list is one");
        services.apply(Apply(object("a", "10.96.0.2")));
        // Listed again: the old list counts until the new one is complete.
        assert_eq!(names(services.apply(Init)), None);
        assert_eq!(names(services.apply(InitApply(object("b", "10.96.0.3")))), None);
        assert_eq!(names(services.apply(InitDone)), Some(vec!["b".to_owned()]));
        assert_eq!(names(services.apply(Apply(object("b", "None")))), Some(vec![]));
        assert_eq!(names(services.apply(Delete(object("b", "None")))), Some(vec![]));
    }

    fn put(name: &str, port: i32) -> Service {
        let spec = json!({"ports": [{"port": port}]});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    /// From the real API server: whichever request fails and whichever event, in whichever way.
    #[tokio::test(start_paused = true)]
    async fn whatever_fails_the_services_are_those_of_the_api() {
        let server = test_api::server();
        server.put("namespaces", json!({"metadata": {"name": "default"}})).await;
        let services: Api<Service> = Api::default_namespaced(test_api::user(&server));
        let (ran, hit) = with_each_fault(async |faults| {
            services.create(&PostParams::default(), &put("stays", 1)).await.unwrap();
            services.create(&PostParams::default(), &put("goes", 2)).await.unwrap();
            let (tx, mut rx) = watch::channel(None);
            let api = Api::all(test_api::of_node(&server, faults));
            let watching = AbortOnDropHandle::new(tokio::spawn(run(api, service, tx, CancellationToken::new())));
            let mut are = async |wanted: &[(&str, i32)]| {
                let there = rx.wait_for(|known: &Option<Arc<Vec<ServiceEnv>>>| {
                    let of = |service: &ServiceEnv| (service.name.clone(), service.ports[0].2);
                    let wanted = wanted.iter().map(|(name, port)| ((*name).to_owned(), *port));
                    known.as_ref().is_some_and(|all| all.iter().map(of).eq(wanted))
                });
                let came = tokio::time::timeout(PATIENCE, there).await.is_ok_and(|seen| seen.is_ok());
                assert!(came, "{wanted:?} never came; {:?}", faults.calls());
            };
            are(&[("goes", 2), ("stays", 1)]).await;
            services.create(&PostParams::default(), &put("comes", 3)).await.unwrap();
            services.delete("goes", &DeleteParams::default()).await.unwrap();
            let patch = Patch::Merge(json!({"spec": {"ports": [{"port": 4}]}}));
            services.patch("stays", &PatchParams::default(), &patch).await.unwrap();
            are(&[("comes", 3), ("stays", 4)]).await;
            drop(watching);
            for name in ["comes", "stays"] {
                services.delete(name, &DeleteParams::default()).await.unwrap();
            }
        })
        .await;
        assert!(ran >= 24 && hit == ran, "{hit} of {ran}");
    }
}
