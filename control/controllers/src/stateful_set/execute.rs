//! Writes what a plan says: claims, pods, and the owners of claims.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::events::Severity;

use super::{
    StatefulSetController, identity, messages,
    plan::{Desired, Plan, Step as Planned, Why},
    retention::{self, Owners, Policy},
};
use crate::{
    history,
    pod_control::batches,
    pods,
    runtime::{CachedPod, During as _, Error, Key, Step, bounded_join, error, same_object},
};

impl StatefulSetController {
    /// Takes the steps in batches of 1, 2, 4 …, until one fails.
    pub(super) async fn execute(
        &self,
        set: &StatefulSet,
        current: &ControllerRevision,
        desired: &Desired<'_>,
        plan: &Plan,
    ) -> Step {
        let (mut all, mut rest) = (Step::Done, plan.steps.as_slice());
        for size in batches(plan.steps.len()) {
            let (batch, later) = rest.split_at(size);
            rest = later;
            let ended = bounded_join(batch.iter().map(|step| self.take(set, current, desired, step))).await;
            all = all.and(ended.into_iter().collect());
            if all == Step::Failed {
                break;
            }
        }
        all
    }

    async fn take(
        &self,
        set: &StatefulSet,
        current: &ControllerRevision,
        desired: &Desired<'_>,
        step: &Planned,
    ) -> Step {
        match step {
            Planned::Create { ordinal, current: kept_back } => {
                let old = if *kept_back { history::template(current) } else { None };
                let newest = set.spec.as_ref().map(|spec| spec.template.clone());
                let (template, revision) = match old {
                    Some(template) => (Some(template), desired.current_revision),
                    None => (newest, desired.update_revision),
                };
                let pod = identity::new_pod(set, &template.unwrap_or_default(), revision, *ordinal);
                self.create(set, *ordinal, pod).await
            }
            Planned::Delete(pod, why) => self.delete(set, pod, *why).await,
        }
    }

    fn claim_api(&self, set: &StatefulSet) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.control.client(), &set.namespace().unwrap_or_default())
    }

    fn pod_api(&self, set: &StatefulSet) -> Api<Pod> {
        Api::namespaced(self.control.client(), &set.namespace().unwrap_or_default())
    }

    fn pod_event(&self, set: &StatefulSet, verb: &str, pod: &str, error: Option<&str>) {
        let severity = if error.is_none() { Severity::Normal } else { Severity::Warning };
        let text = messages::pod(verb, pod, &set.name_any(), error);
        self.control.record(set, severity, messages::reason(verb, error.is_none()), text);
    }

    /// Creates a pod, and before it the claims that it has not yet.
    async fn create(&self, set: &StatefulSet, ordinal: i64, pod: Pod) -> Step {
        let (name, namespace) = (pod.name_any(), set.namespace().unwrap_or_default());
        let known = identity::claim_names(set, ordinal).filter_map(|name| self.claims.get(&Key::new(&namespace, name)));
        for claim in known {
            if claim.metadata.deletion_timestamp.is_some() {
                let text = messages::claim_is_deleted(&claim.name_any());
                self.pod_event(set, messages::CREATE, &name, Some(&text));
                return Step::waits_for(&self.claims);
            }
            if retention::is_stale(&claim, &name, None) {
                return Step::waits_for(&self.claims);
            }
        }
        match self.create_claims(set, ordinal, &name).await {
            Step::Done => {}
            other => return other,
        }
        match self.pod_api(set).create(&PostParams::default(), &pod).await {
            Ok(created) => {
                self.control.expect_created(set, &created);
                self.pod_event(set, messages::CREATE, &name, None);
                Step::Done
            }
            // The set is deleted with its namespace.
            Err(error) if error::is_namespace_terminating(&error) => Step::waits_for(&self.sets),
            // The cache is behind, or the name is another's.
            Err(error) if error::is_already_exists(&error) => Step::Failed,
            Err(error) => {
                self.pod_event(set, messages::CREATE, &name, Some(&error::message(&error)));
                Step::Failed
            }
        }
    }

    /// Creates the claims of a pod that do not exist.
    async fn create_claims(&self, set: &StatefulSet, ordinal: i64, pod: &str) -> Step {
        let (api, name) = (self.claim_api(set), set.name_any());
        for claim in identity::claims(set, ordinal) {
            if self.claims.get(&Key::of(&claim.metadata)).is_some() {
                continue;
            }
            let event = |severity, succeeded, error: Option<&str>| {
                let text = messages::claim(messages::CREATE, &claim.name_any(), pod, &name, error);
                self.control.record(set, severity, messages::reason(messages::CREATE, succeeded), text);
            };
            match api.create(&PostParams::default(), &claim).await {
                Ok(_) => event(Severity::Normal, true, None),
                Err(error) if error::is_already_exists(&error) => {}
                Err(error) if error::is_namespace_terminating(&error) => return Step::waits_for(&self.sets),
                Err(error) => {
                    let text = error::message(&error);
                    event(Severity::Warning, false, Some(&text));
                    self.pod_event(set, messages::CREATE, pod, Some(&text));
                    return Step::Failed;
                }
            }
        }
        Step::Done
    }

    /// Deletes exactly this pod; one that is gone or another by now is left alone.
    async fn delete(&self, set: &StatefulSet, pod: &CachedPod, why: Why) -> Step {
        let (name, namespace, set_name) = (pod.name_any(), set.namespace().unwrap_or_default(), set.name_any());
        match why {
            Why::Failed => {
                let text = messages::recreating_failed(&namespace, &set_name, &name);
                self.control.record(set, Severity::Warning, messages::RECREATING_FAILED, text);
            }
            Why::Succeeded => {
                let text = messages::recreating_terminated(&namespace, &set_name, &name);
                self.control.record(set, Severity::Normal, messages::RECREATING_TERMINATED, text);
            }
            Why::Condemned | Why::Outdated => {}
        }
        let params = DeleteParams::default().preconditions(same_object(&pod.metadata));
        match self.pod_api(set).delete(&name, &params).await {
            Ok(_) => {
                self.control.expect_deleted(set, pod);
                self.pod_event(set, messages::DELETE, &name, None);
                Step::Done
            }
            Err(error) if error::is_not_found(&error) || error::is_conflict(&error) => Step::Done,
            Err(error) => {
                self.pod_event(set, messages::DELETE, &name, Some(&error::message(&error)));
                Step::Failed
            }
        }
    }

    /// Gives pods the labels of their ordinals, pending ones the claims that they lack, and claims their owners. A claim that
    /// could not be made is tried again, and does not hold up the others.
    ///
    /// # Errors
    /// When the API refuses, or something has changed meanwhile.
    pub(super) async fn maintain(&self, set: &StatefulSet, desired: &Desired<'_>, plan: &Plan) -> Result<Step, Error> {
        let mut all = Step::Done;
        for (ordinal, pod) in &plan.pods {
            let condemned = desired.is_condemned(*ordinal);
            if !condemned && pod.metadata.deletion_timestamp.is_none() {
                if !identity::has_identity(desired.name, *ordinal, pod) {
                    self.label(set, *ordinal, pod).await?;
                }
                if pods::phase(pod) == "Pending" {
                    let made = self.create_claims(set, *ordinal, &pod.name_any()).await;
                    all = all.and(made);
                    if made != Step::Done {
                        continue;
                    }
                }
            }
            for name in identity::claim_names(set, *ordinal) {
                if let Some(claim) = self.claim(set, name).await? {
                    self.own(set, pod, condemned, &claim).await?;
                }
            }
        }
        Ok(all)
    }

    /// A claim, also one that was made a moment ago and that the cache does not show: what the set's policy says of it has to
    /// be written before its pod goes, and no other change comes afterwards.
    async fn claim(&self, set: &StatefulSet, name: String) -> Result<Option<Arc<PersistentVolumeClaim>>, Error> {
        let (key, policy) = (Key::new(set.namespace().unwrap_or_default(), name), Policy::of(set));
        if let Some(claim) = self.claims.get(&key) {
            return Ok(Some(claim));
        }
        if !policy.when_deleted && !policy.when_scaled {
            return Ok(None);
        }
        Ok(self.claim_api(set).get_opt(&key.name).await.during("read the claim", &key)?.map(Arc::new))
    }

    async fn label(&self, set: &StatefulSet, ordinal: i64, pod: &CachedPod) -> Result<(), Error> {
        let labels: serde_json::Map<String, serde_json::Value> = identity::identity_labels(&set.name_any(), ordinal)
            .map(|(key, value)| (key, json!(value)))
            .into_iter()
            .collect();
        let patch = json!({"metadata": {
            "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version, "labels": labels,
        }});
        let name = pod.name_any();
        let written = self.pod_api(set).patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match error::ignore_deleted(written) {
            Ok(Some(_)) => self.pod_event(set, messages::UPDATE, &name, None),
            Ok(None) => return Err(Error::Changed(name)),
            Err(error) => {
                self.pod_event(set, messages::UPDATE, &name, Some(&error::message(&error)));
                return Err(error).during("label", &name);
            }
        }
        Ok(())
    }

    /// Gives a claim the owners that the set's policy says.
    async fn own(
        &self,
        set: &StatefulSet,
        pod: &CachedPod,
        condemned: bool,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), Error> {
        let (policy, name) = (Policy::of(set), claim.name_any());
        match retention::owners(policy, set, pod, condemned, claim) {
            Owners::Keep => {}
            Owners::Conflict => {
                if policy.when_deleted || policy.when_scaled {
                    let text = messages::conflicting_controller(&name);
                    self.control.record(set, Severity::Warning, messages::CONFLICTING_CONTROLLER, text);
                }
            }
            Owners::Set(owners) => {
                let patch = json!({"metadata": {
                    "uid": claim.metadata.uid,
                    "resourceVersion": claim.metadata.resource_version,
                    "ownerReferences": owners,
                }});
                let written = self.claim_api(set).patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                let written = error::ignore_deleted(written).during("set the owners of", &name)?;
                if written.is_none() {
                    return Err(Error::Changed(name));
                }
            }
        }
        Ok(())
    }
}
