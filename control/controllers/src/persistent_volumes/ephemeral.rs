//! Makes the claims of pods' ephemeral volumes; upstream's ephemeral volume controller. They go with their pods.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimTemplate},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource as _, api::PostParams};
use windlass_kit::{
    metrics::{Counter, Metrics},
    objects::claims::claim_of,
    prometheus::Text,
};

use super::{
    super::{
        pods::{is_active, is_controlled_by},
        runtime::{CachedPod, During as _, Error, Key, Step, error},
    },
    PersistentVolumeController, messages,
};

/// Metrics by upstream's names (`pkg/controller/volume/ephemeral/metrics`).
pub(super) struct EphemeralMetrics {
    created: Counter<0>,
    failed: Counter<0>,
}

impl Default for EphemeralMetrics {
    fn default() -> Self {
        Self {
            created: Counter::new(
                "ephemeral_volume_controller_create_total",
                "Claims of ephemeral volumes that were to be made.",
                [],
            ),
            failed: Counter::new(
                "ephemeral_volume_controller_create_failures_total",
                "Claims of ephemeral volumes that could not be made.",
                [],
            ),
        }
    }
}

impl Metrics for EphemeralMetrics {
    fn write(&self, page: &mut Text) {
        self.created.write(page);
        self.failed.write(page);
    }
}

impl PersistentVolumeController {
    pub(super) async fn reconcile_pod(&self, key: &Key) -> Result<Step, Error> {
        let Some(pod) = self.pods.get(key).filter(|p| is_active(p)) else { return Ok(Step::Done) };
        let mut all = Step::Done;
        for volume in pod.volumes() {
            let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref());
            let (Some(template), Some(claim)) = (template, claim_of(&pod.metadata, volume)) else { continue };
            all = all.and(self.ensure_claim(key, &pod, &volume.name, &claim.name, template).await?);
        }
        Ok(all)
    }

    /// Makes the claim of one volume, unless there is one: of this pod, or of somebody else, which the pod cannot use.
    async fn ensure_claim(
        &self,
        key: &Key,
        pod: &CachedPod,
        volume: &str,
        name: &str,
        template: &PersistentVolumeClaimTemplate,
    ) -> Result<Step, Error> {
        if let Some(known) = self.claims.get(&Key::new(&key.namespace, name)) {
            return Ok(self.accept(key, pod, volume, &known));
        }
        let api = self.claims_of(&key.namespace);
        self.ephemeral.created.add([]);
        match api.create(&PostParams::default(), &new_claim(pod, name, template)).await {
            Ok(_) => Ok(Step::Done),
            // The pod is deleted with its namespace.
            Err(error) if error::is_namespace_terminating(&error) => Ok(Step::waits_for(&self.pods)),
            // Made before, and not in the cache yet, or somebody else's.
            Err(error) if error::is_already_exists(&error) => {
                let found = api.get_opt(name).await.during("read the claim of an ephemeral volume", &name)?;
                Ok(found.map_or(Step::Failed, |found| self.accept(key, pod, volume, &found)))
            }
            Err(error) => {
                self.ephemeral.failed.add([]);
                self.tell(pod, &messages::claim_not_made(volume, name, &error::message(&error)));
                Ok(Step::Failed)
            }
        }
    }

    /// A claim of the right name. If it belongs to another owner, its removal wakes the pod.
    fn accept(&self, key: &Key, pod: &CachedPod, volume: &str, claim: &PersistentVolumeClaim) -> Step {
        if is_controlled_by(&claim.metadata, &pod.metadata) {
            return Step::Done;
        }
        self.tell(pod, &messages::claim_of_another(volume, &Key::of(&claim.metadata).to_string(), &key.to_string()));
        Step::waits_for(&self.claims)
    }
}

fn new_claim(pod: &CachedPod, name: &str, template: &PersistentVolumeClaimTemplate) -> PersistentVolumeClaim {
    let owner = OwnerReference {
        block_owner_deletion: Some(true),
        controller: Some(true),
        ..pod.owner_ref(&()).unwrap_or_default()
    };
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            ..template.metadata.clone().unwrap_or_default()
        },
        spec: Some(template.spec.clone()),
        ..PersistentVolumeClaim::default()
    }
}
