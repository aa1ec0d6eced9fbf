//! The pods of each autoscaler, to find those that several scale: upstream's `hpasControllingPodsUnderSelector`. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use windlass_kit::objects::label_selector::{Selector, selects};

use crate::runtime::{CachedPod, Key, SelectorIndex};

/// The selectors of the scales that were read last.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    index: SelectorIndex,
    by_autoscaler: HashMap<Key, LabelSelector>,
}

impl Selectors {
    pub(super) fn set(&mut self, autoscaler: &Key, selector: &LabelSelector) {
        if self.by_autoscaler.get(autoscaler) != Some(selector) {
            self.index.set(autoscaler, Some(Selector::from(selector)));
            self.by_autoscaler.insert(autoscaler.clone(), selector.clone());
        }
    }

    pub(super) fn forget(&mut self, autoscaler: &Key) {
        self.index.set(autoscaler, None);
        self.by_autoscaler.remove(autoscaler);
    }

    /// The autoscalers of any of these pods, ordered by name.
    pub(super) fn controlling(&self, namespace: &str, pods: &[Arc<CachedPod>]) -> Vec<Key> {
        let none = BTreeMap::new();
        let labels = || pods.iter().map(|pod| pod.metadata.labels.as_ref().unwrap_or(&none));
        let mut found = self.index.candidates(namespace, labels());
        found.retain(|key| {
            self.by_autoscaler.get(key).is_some_and(|selector| labels().any(|labels| selects(selector, labels)))
        });
        found
    }
}
