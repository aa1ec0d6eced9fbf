//! Makes the claims of pods' ephemeral volumes; upstream's ephemeral volume controller. They go with their pods.

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Resource as _, api::PostParams};
use windlass_kit::objects::claims::claim_of;

use super::{
    super::{
        pods::is_active,
        runtime::{During as _, Error, Key, error},
    },
    PersistentVolumes,
};

impl PersistentVolumes {
    pub(super) async fn reconcile_pod(&self, key: &Key) -> Result<(), Error> {
        let Some(pod) = self.pods.get(key).filter(|p| is_active(p)) else { return Ok(()) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        for volume in pod.volumes() {
            let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) else {
                continue;
            };
            let Some(name) = claim_of(&pod.metadata, volume).map(|c| c.name) else { continue };
            if self.claims.get(&Key::new(&key.namespace, &name)).is_some() {
                continue;
            }
            let owner = OwnerReference {
                block_owner_deletion: Some(true),
                controller: Some(true),
                ..pod.owner_ref(&()).unwrap_or_default()
            };
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: Some(vec![owner]),
                    ..template.metadata.clone().unwrap_or_default()
                },
                spec: Some(template.spec.clone()),
                ..PersistentVolumeClaim::default()
            };
            match api.create(&PostParams::default(), &claim).await {
                Err(error) if error::is_already_exists(&error) || error::is_namespace_terminating(&error) => {}
                made => drop(made.during("make the claim of an ephemeral volume", &name)?),
            }
        }
        Ok(())
    }
}
