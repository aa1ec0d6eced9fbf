//! The services that pods see in their environment, kept from a watch of the API.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

use super::env::ServiceEnv;

/// Follows all services until `shutdown`. Nothing is told before they were listed once.
pub(crate) async fn follow(client: Client, tell: watch::Sender<Listed>, shutdown: CancellationToken) {
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
            Err(error) => tracing::debug!(%error, "services could not be watched; it is tried again"),
            Ok(Some(event)) => {
                let Some(all) = services.take(event) else { continue };
                tell.send_if_modified(|old| {
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

/// All services; `None` before they were listed once. A container without the variables of a service that was there
/// would be without them for its whole life.
pub(crate) type Listed = Option<Arc<Vec<ServiceEnv>>>;

/// How long the start of a container waits for the first list.
const PATIENCE: Duration = Duration::from_secs(5);

/// The services that a container sees, once they are known.
///
/// # Errors
/// When they are not in good time, in upstream's words.
pub(crate) async fn listed(services: &watch::Receiver<Listed>) -> Result<Arc<Vec<ServiceEnv>>, String> {
    listed_within(services, PATIENCE).await
}

async fn listed_within(services: &watch::Receiver<Listed>, patience: Duration) -> Result<Arc<Vec<ServiceEnv>>, String> {
    let mut services = services.clone();
    let first = tokio::time::timeout(patience, services.wait_for(Option::is_some)).await;
    let first = first.ok().and_then(|told| told.ok()?.clone());
    first.ok_or_else(|| "services have not yet been read at least once, cannot construct envvars".to_owned())
}

/// What the watch has told so far.
#[derive(Debug, Default)]
struct Services {
    known: BTreeMap<(String, String), ServiceEnv>,
    /// A list that is on its way; what is known counts until it is complete.
    listed: BTreeMap<(String, String), ServiceEnv>,
    complete: bool,
}

impl Services {
    /// Takes in an event; gives all services where it may have changed them.
    fn take(&mut self, event: watcher::Event<Service>) -> Option<Vec<ServiceEnv>> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                return None;
            }
            watcher::Event::InitApply(service) => {
                put(&mut self.listed, &service);
                return None;
            }
            watcher::Event::InitDone => {
                self.known = std::mem::take(&mut self.listed);
                self.complete = true;
            }
            watcher::Event::Apply(service) => put(&mut self.known, &service),
            watcher::Event::Delete(service) => drop(self.known.remove(&key(&service))),
        }
        self.complete.then(|| self.known.values().cloned().collect())
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
        assert_eq!(names(services.take(Init)), None);
        assert_eq!(names(services.take(InitApply(service("kubernetes", "10.96.0.1")))), None);
        assert_eq!(names(services.take(InitDone)), Some(vec!["kubernetes".to_owned()]));
        assert_eq!(names(services.take(InitDone)), Some(vec![]), "an empty list is one");
        services.take(Apply(service("a", "10.96.0.2")));
        // Listed again: what was known counts until the new list is complete.
        assert_eq!(names(services.take(Init)), None);
        assert_eq!(names(services.take(InitApply(service("b", "10.96.0.3")))), None);
        assert_eq!(names(services.take(InitDone)), Some(vec!["b".to_owned()]));
        assert_eq!(names(services.take(Apply(service("b", "None")))), Some(vec![]));
        assert_eq!(names(services.take(Delete(service("b", "None")))), Some(vec![]));
    }

    #[tokio::test]
    async fn a_container_waits_for_the_first_list_and_not_for_ever() {
        let (tell, services) = watch::channel(None);
        let short = listed_within(&services, Duration::from_millis(20)).await;
        assert!(short.unwrap_err().contains("not yet been read"));
        let waiting = tokio::spawn(async move { listed_within(&services, Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        tell.send_replace(Some(Arc::default()));
        assert_eq!(waiting.await.unwrap().map(|all| all.len()), Ok(0));
    }
}
