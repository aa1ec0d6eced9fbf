//! ReplicationController as an owner of pods. Pure.

use std::{collections::BTreeMap, sync::LazyLock};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController};
use serde_json::{Value, json};

use super::{
    Owner,
    plan::{Counts, Desired},
    status,
};
use crate::{pod_control::Failure, pods};

impl crate::runtime::Cached for ReplicationController {}

/// The labels of a template without any.
pub(super) static NO_LABELS: LazyLock<BTreeMap<String, String>> = LazyLock::new(BTreeMap::new);

impl Owner for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller-controller";
    const QUEUE: &'static str = "replicationmanager";
    const COMPONENT: &'static str = "replication-controller";

    fn desired(&self) -> Option<Desired<'_>> {
        let spec = self.spec.as_ref()?;
        let labels = self.template().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.as_ref());
        let selector = spec.selector.as_ref().or(labels).filter(|s| !s.is_empty())?;
        Some(Desired {
            uid: self.metadata.uid.as_deref()?,
            deleting: self.metadata.deletion_timestamp.is_some(),
            replicas: usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0),
            min_ready: pods::min_ready(spec.min_ready_seconds),
            selector: selector.into(),
            template_labels: labels.unwrap_or(&NO_LABELS),
        })
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status_patch(&self, counts: Counts, failure: Option<&Failure>, now: Timestamp) -> Option<Value> {
        status::patch(&json!(self.status), self.metadata.generation, counts, None, failure, now)
    }
}
