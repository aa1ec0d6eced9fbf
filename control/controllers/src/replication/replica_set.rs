//! ReplicaSet as an owner of pods. Pure.

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::PodTemplateSpec};
use serde_json::{Value, json};
use windlass_kit::objects::label_selector::Selector;

use super::{
    Owner,
    plan::{Counts, Desired},
    replication_controller::NO_LABELS,
    status,
};
use crate::{pod_control::Failure, pods};

impl crate::runtime::Cached for ReplicaSet {}

impl Owner for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const QUEUE: &'static str = "replicaset";
    const COMPONENT: &'static str = "replicaset-controller";

    fn desired(&self) -> Option<Desired<'_>> {
        let spec = self.spec.as_ref()?;
        let labels = self.template().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.as_ref());
        Some(Desired {
            uid: self.metadata.uid.as_deref()?,
            deleting: self.metadata.deletion_timestamp.is_some(),
            replicas: usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0),
            min_ready: pods::min_ready(spec.min_ready_seconds),
            selector: Selector::of(&spec.selector)?,
            template_labels: labels.unwrap_or(&NO_LABELS),
        })
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status_patch(&self, counts: Counts, failure: Option<&Failure>, now: Timestamp) -> Option<Value> {
        let terminating = Some(counts.terminating);
        status::patch(&json!(self.status), self.metadata.generation, counts, terminating, failure, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn selector_expressions_count_and_an_empty_one_matches_nothing() {
        let mut set: ReplicaSet = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "n", "uid": "u"},
            "spec": {"replicas": 2, "minReadySeconds": 5, "selector": {
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "shop"]}]}},
        }))
        .unwrap();
        let desired = set.desired().unwrap();
        assert_eq!((desired.replicas, desired.min_ready), (2, Duration::from_secs(5)));
        let labels = |app: &str| [("app".to_owned(), app.to_owned())].into_iter().collect();
        assert!(desired.selector.matches(Some(&labels("shop"))) && !desired.selector.matches(Some(&labels("db"))));
        set.spec.as_mut().unwrap().selector = Default::default();
        assert!(set.desired().is_none());
    }
}
