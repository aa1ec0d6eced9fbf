//! What one pass over a Deployment writes. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::{Value, json};

/// One write of a ReplicaSet.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Create(Arc<ReplicaSet>),
    Update(Update),
    Delete(Arc<ReplicaSet>),
}

/// Changes of a ReplicaSet.
#[derive(Debug, Clone)]
pub(super) struct Update {
    pub(super) set: Arc<ReplicaSet>,
    /// Those to set.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) min_ready_seconds: Option<i32>,
    /// From one size to another.
    pub(super) scaled: Option<(i32, i32)>,
}

impl Update {
    /// The merge patch for the ReplicaSet at a resource version.
    pub(super) fn patch(&self, version: Option<&str>) -> Value {
        let mut patch = json!({"metadata": {"uid": self.set.metadata.uid, "resourceVersion": version}});
        if !self.annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(self.annotations);
        }
        if let Some(seconds) = self.min_ready_seconds {
            patch["spec"]["minReadySeconds"] = json!(seconds);
        }
        if let Some((_, to)) = self.scaled {
            patch["spec"]["replicas"] = json!(to);
        }
        patch
    }
}
