//! Volume expansion: a bound claim that requests more than it has gets an event that an external controller must expand
//! its volume. Upstream's controller (`pkg/controller/volume/expand`) has plugins for some kinds of volumes, none of
//! which exists here. Volumes of the local-path provisioner are expanded by it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
    quantity::Quantity,
};

use super::{
    runtime::{Cache, Context, Controller, Error, Key, Outcome},
    storage::{claim_capacity, claim_phase, holder_uid, is_local_path, requested, volume_of},
};

pub(crate) struct ExpandController {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    recorder: Recorder,
}

/// How much a bound claim asks for, if that is more than it has.
fn missing(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let has = claim_capacity(claim).filter(|_| claim_phase(claim) == "Bound")?;
    Some(requested(claim)).filter(|wanted| *wanted > has)
}

/// Whether a claim waits for others to expand its volume. Pure.
fn waits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    missing(claim).is_some()
        && holder_uid(volume).is_some()
        && holder_uid(volume) == claim.metadata.uid.as_deref()
        && !is_local_path(volume)
}

impl Controller for ExpandController {
    const NAME: &'static str = "persistentvolume-expander-controller";
    const QUEUE: &'static str = "volume_expand";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (claims, volumes) = (context.informer::<PersistentVolumeClaim>(), context.informer::<PersistentVolume>());
        let queue = context.queue();
        claims.on_change(move |old: Option<&Arc<PersistentVolumeClaim>>, new| {
            let wanted = new.and_then(|claim| missing(claim));
            if let Some(claim) = new.filter(|_| wanted.is_some() && wanted != old.and_then(|claim| missing(claim))) {
                queue.add(Key::of(&claim.metadata));
            }
        });
        Self { claims: claims.cache(), volumes: volumes.cache(), recorder: context.recorder("volume_expand") }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Outcome::Done) };
        let volume = volume_of(&claim).and_then(|name| self.volumes.get(&Key::new("", name)));
        if volume.is_some_and(|volume| waits(&claim, &volume)) {
            let message = "waiting for an external controller to expand this PVC";
            self.recorder.record(&object_ref::of(&*claim), Severity::Normal, "ExternalExpanding", message);
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::storage::{LOCAL_PATH_PROVISIONER, PROVISIONED_BY};

    #[test]
    fn a_claim_waits_for_whoever_can_expand_its_volume() {
        let claim = |phase: &str, asks: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"uid": "1"},
                "spec": {"volumeName": "v", "resources": {"requests": {"storage": asks}}},
                "status": {"phase": phase, "capacity": {"storage": "1Gi"}}}))
            .unwrap()
        };
        let volume = |uid: &str, by: &str| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"annotations": {PROVISIONED_BY: by}},
                "spec": {"claimRef": {"uid": uid}}}))
            .unwrap()
        };
        for (claim, volume, wanted) in [
            (claim("Bound", "2Gi"), volume("1", "a.b/c"), true),
            (claim("Bound", "2Gi"), volume("1", LOCAL_PATH_PROVISIONER), false),
            (claim("Bound", "2Gi"), volume("2", "a.b/c"), false),
            (claim("Bound", "1024Mi"), volume("1", "a.b/c"), false),
            (claim("Lost", "2Gi"), volume("1", "a.b/c"), false),
        ] {
            assert_eq!(waits(&claim, &volume), wanted, "{claim:?} {volume:?}");
        }
    }
}
