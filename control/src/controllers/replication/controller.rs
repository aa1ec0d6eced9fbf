//! ReplicationController as an owner of pods.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};

use super::{Failure, Owner, plan::Counts, plan::Desired};

const FAILURE: &str = "ReplicaFailure";

impl Owner for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller-controller";
    const COMPONENT: &'static str = "replication-controller";

    fn desired(&self) -> Option<Desired<'_>> {
        static NO_LABELS: LazyLock<BTreeMap<String, String>> = LazyLock::new(BTreeMap::new);
        let spec = self.spec.as_ref()?;
        let labels = self.template().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.as_ref());
        let selector = spec.selector.as_ref().or(labels).filter(|s| !s.is_empty())?;
        Some(Desired {
            uid: self.metadata.uid.as_deref()?,
            deleting: self.metadata.deletion_timestamp.is_some(),
            replicas: usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0),
            min_ready: Duration::from_secs(u64::try_from(spec.min_ready_seconds.unwrap_or(0)).unwrap_or(0)),
            selector: selector.into(),
            template_labels: labels.unwrap_or(&NO_LABELS),
        })
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status_patch(&self, counts: Counts, failure: Option<&Failure>, now: Timestamp) -> Option<Value> {
        let old = self.status.clone().unwrap_or_default();
        let status = ReplicationControllerStatus {
            replicas: counts.replicas,
            fully_labeled_replicas: Some(counts.fully_labeled),
            ready_replicas: Some(counts.ready),
            available_replicas: Some(counts.available),
            observed_generation: self.metadata.generation,
            conditions: conditions(old.conditions.as_deref().unwrap_or_default(), failure, now),
        };
        let same = status.replicas == old.replicas
            && status.fully_labeled_replicas.unwrap_or(0) == old.fully_labeled_replicas.unwrap_or(0)
            && status.ready_replicas.unwrap_or(0) == old.ready_replicas.unwrap_or(0)
            && status.available_replicas.unwrap_or(0) == old.available_replicas.unwrap_or(0)
            && status.observed_generation == old.observed_generation
            && status.conditions == old.conditions.filter(|c| !c.is_empty());
        (!same).then(|| {
            json!({"status": {
                "replicas": status.replicas,
                "fullyLabeledReplicas": status.fully_labeled_replicas,
                "readyReplicas": status.ready_replicas,
                "availableReplicas": status.available_replicas,
                "observedGeneration": status.observed_generation,
                "conditions": status.conditions,
            }})
        })
    }
}

/// The conditions with `ReplicaFailure` set or removed; `None` instead of an empty list.
fn conditions(
    old: &[ReplicationControllerCondition],
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Vec<ReplicationControllerCondition>> {
    let mut all: Vec<_> = old.iter().filter(|c| c.type_ != FAILURE).cloned().collect();
    if let Some(failure) = failure {
        let known = old.iter().find(|c| c.type_ == FAILURE && c.reason.as_deref() == Some(failure.reason));
        all.push(known.cloned().unwrap_or_else(|| ReplicationControllerCondition {
            type_: FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(failure.reason.to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: Some(Time(now)),
        }));
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ReplicationControllerSpec;

    use super::*;

    #[test]
    fn status_is_written_only_when_it_changes() {
        let mut rc = ReplicationController { spec: Some(ReplicationControllerSpec::default()), ..Default::default() };
        rc.metadata.generation = Some(3);
        let (now, counts) = (Timestamp::UNIX_EPOCH, Counts { replicas: 2, ready: 1, ..Counts::default() });
        let patch = rc.status_patch(counts, None, now).unwrap();
        assert_eq!(patch["status"]["observedGeneration"], 3);
        assert!(patch["status"]["conditions"].is_null());
        rc.status = Some(serde_json::from_value(patch["status"].clone()).unwrap());
        assert_eq!(rc.status_patch(counts, None, now), None);

        let failure = Failure { reason: "FailedCreate", message: "quota".into() };
        let patch = rc.status_patch(counts, Some(&failure), now).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["type"], FAILURE);
        rc.status = Some(serde_json::from_value(patch["status"].clone()).unwrap());
        assert_eq!(rc.status_patch(counts, Some(&failure), now), None);
        assert!(rc.status_patch(counts, None, now).is_some(), "the condition goes away");
    }
}
