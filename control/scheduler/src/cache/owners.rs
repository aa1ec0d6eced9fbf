//! Which pods belong together, for the default topology spread constraints: the selectors of services and of the
//! controllers that own pods (upstream's `helper.DefaultSelector`). Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::model::{Key, PodInfo, Selector};

#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Selectors of services by namespace and name.
    services: HashMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    /// Selectors by kind, namespace and name.
    controllers: HashMap<(&'static str, String, String), LabelSelector>,
}

impl Owners {
    /// A service; one without a selector selects no pods.
    pub(crate) fn set_service(&mut self, namespace: &str, name: &str, selector: Option<BTreeMap<String, String>>) {
        match selector {
            Some(selector) => {
                self.services.entry(namespace.to_owned()).or_default().insert(name.to_owned(), selector);
            }
            None => {
                if let Some(services) = self.services.get_mut(namespace) {
                    services.remove(name);
                    if services.is_empty() {
                        self.services.remove(namespace);
                    }
                }
            }
        }
    }

    /// The services that have a selector.
    pub(crate) fn services(&self) -> impl Iterator<Item = Key> {
        let all = self.services.iter();
        all.flat_map(|(namespace, services)| services.keys().map(|name| (namespace.clone(), name.clone())))
    }

    pub(crate) fn set_controller(
        &mut self,
        kind: &'static str,
        namespace: &str,
        name: &str,
        selector: Option<LabelSelector>,
    ) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        match selector {
            Some(selector) => drop(self.controllers.insert(key, selector)),
            None => drop(self.controllers.remove(&key)),
        }
    }

    /// The controllers of a kind.
    pub(crate) fn controllers(&self, kind: &'static str) -> impl Iterator<Item = Key> {
        let all = self.controllers.keys().filter(move |(of, _, _)| *of == kind);
        all.map(|(_, namespace, name)| (namespace.clone(), name.clone()))
    }

    /// Selects the pods of a pod's services and of its owner; `None` when there are none of these.
    pub(crate) fn default_selector(&self, pod: &PodInfo, owner: Option<&(String, String)>) -> Option<Selector> {
        let services = self.services.get(&pod.namespace).into_iter().flat_map(BTreeMap::values);
        let mut labels: BTreeMap<String, String> = services
            .filter(|selector| selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value)))
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let kinds = ["ReplicationController", "ReplicaSet", "StatefulSet"];
        let owning = owner.and_then(|(kind, name)| {
            let kind = kinds.into_iter().find(|known| known == kind)?;
            self.controllers.get(&(kind, pod.namespace.clone(), name.clone()))
        });
        let selector = match owning {
            Some(LabelSelector { match_labels, match_expressions: None }) => {
                labels.extend(match_labels.clone().unwrap_or_default());
                Selector::of_labels(labels)
            }
            Some(selector) => Selector::of_labels(labels).and(selector),
            None => Selector::of_labels(labels),
        };
        (!selector.is_empty()).then_some(selector)
    }
}
