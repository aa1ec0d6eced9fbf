//! Persistent volume controller: binds claims to volumes, protects both with finalizers while in use, and creates
//! claims of ephemeral volumes. `bind` decides and is pure.
//!
//! Nothing is provisioned or reclaimed: volumes are created by administrators, and a released one keeps its data,
//! whatever its reclaim policy, until it is deleted.

mod bind;

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::{
    events::{Recorder, Severity},
    objects::claims::claim_of,
};

use super::{
    finalizers::write_finalizer,
    indexes::PODS_BY_CLAIM,
    pods::{is_active, is_terminal},
    runtime::{Cache, CachedPod, Context, Controller, During as _, Error, Index, Key, Outcome, error},
};
use bind::{Choice, choose, is_of_another, phase};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// Annotation of a claim that has been bound.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Claims by the volume that they name.
const CLAIMS_BY_VOLUME: Index<PersistentVolumeClaim> =
    Index::new("volume", |claim| volume_of(claim).map(str::to_owned).into_iter().collect());
/// Claims that are not bound, by storage class.
const UNBOUND_CLAIMS_BY_CLASS: Index<PersistentVolumeClaim> = Index::new("unbound", |claim| {
    let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone()).unwrap_or_default();
    (!is_bound(claim)).then_some(class).into_iter().collect()
});
/// Volumes that belong to no claim, by storage class.
const FREE_VOLUMES_BY_CLASS: Index<PersistentVolume> =
    Index::new("free", |volume| holder_of(volume).is_none().then(|| class_of(volume)).into_iter().collect());
/// Volumes that belong to a claim or are reserved for one, by that claim, as `namespace/claim`.
const VOLUMES_BY_CLAIM: Index<PersistentVolume> =
    Index::new("claim", |volume| holder_of(volume).map(|key| key.to_string()).into_iter().collect());

/// A queue key. Claims and pods have a namespace; volumes have none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum QueueItem {
    Claim(Key),
    Volume(Key),
    /// A pod with ephemeral volumes.
    Pod(Key),
}

impl std::fmt::Display for QueueItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Claim(key) | Self::Volume(key) | Self::Pod(key)) = self;
        write!(f, "{key}")
    }
}

pub(crate) struct PersistentVolumes {
    client: Client,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
}

impl Controller for PersistentVolumes {
    const NAME: &'static str = "persistentvolume-binder-controller";
    type Key = QueueItem;
    type Config = ();

    fn subscribe(context: &mut Context<QueueItem>, (): ()) -> Self {
        let claims = context.informer::<PersistentVolumeClaim>();
        let volumes = context.informer::<PersistentVolume>();
        let pods = context.informer::<CachedPod>();
        claims.index(&CLAIMS_BY_VOLUME).index(&UNBOUND_CLAIMS_BY_CLASS);
        volumes.index(&FREE_VOLUMES_BY_CLASS).index(&VOLUMES_BY_CLAIM);
        pods.index(&PODS_BY_CLAIM);
        let (enqueue, cache) = (context.queue(), volumes.cache());
        claims.on_change(move |old, new| {
            let Some(claim) = new.or(old) else { return };
            let key = Key::of(claim.meta());
            let of_claim =
                cache.by_index(&VOLUMES_BY_CLAIM, &key.to_string()).into_iter().map(|volume| volume.name_any());
            for volume in of_claim.chain(volume_of(claim).map(str::to_owned)) {
                enqueue.add(QueueItem::Volume(Key::new("", volume)));
            }
            enqueue.add(QueueItem::Claim(key));
        });
        let (enqueue, cache) = (context.queue(), claims.cache());
        volumes.on_change(move |old, new| {
            let Some(volume) = new.or(old) else { return };
            enqueue.add(QueueItem::Volume(Key::of(volume.meta())));
            // A claim that named it may have lost it or get it, one that it is reserved for get it.
            let named = cache.by_index(&CLAIMS_BY_VOLUME, &volume.name_any());
            named.iter().for_each(|claim| enqueue.add(QueueItem::Claim(Key::of(claim.meta()))));
            for claim in [old, new].into_iter().flatten().filter_map(|volume| holder_of(volume)) {
                enqueue.add(QueueItem::Claim(claim));
            }
            // Any other may get it while it is free.
            if let Some(volume) = new.filter(|volume| holder_of(volume).is_none()) {
                for claim in cache.by_index(&UNBOUND_CLAIMS_BY_CLASS, &class_of(volume)) {
                    enqueue.add(QueueItem::Claim(Key::of(claim.meta())));
                }
            }
        });
        let enqueue = context.queue();
        pods.on_change(move |old: Option<&Arc<CachedPod>>, new: Option<&Arc<CachedPod>>| {
            let Some(pod) = new.or(old) else { return };
            if new.is_some() && pod.volumes().any(|v| v.ephemeral.is_some()) {
                enqueue.add(QueueItem::Pod(Key::of(pod.meta())));
            }
            for claim in pod.claims() {
                enqueue.add(QueueItem::Claim(Key::new(pod.namespace().unwrap_or_default(), claim.name)));
            }
        });
        Self {
            client: context.client(),
            claims: claims.cache(),
            volumes: volumes.cache(),
            pods: pods.cache(),
            recorder: context.recorder("persistentvolume-controller"),
        }
    }

    async fn reconcile(&self, item: QueueItem) -> Result<Outcome, Error> {
        match item {
            QueueItem::Claim(key) => self.claim(&key).await,
            QueueItem::Volume(key) => self.volume(&key).await,
            QueueItem::Pod(key) => self.pod(&key).await,
        }
        .map(|()| Outcome::Done)
    }
}

impl PersistentVolumes {
    /// The volumes that a claim may be bound to: the one that it names, those reserved for it, and the free ones of its
    /// class.
    fn candidates(&self, key: &Key, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        if let Some(name) = volume_of(claim) {
            return self.volumes.get(&Key::new("", name)).into_iter().collect();
        }
        let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).unwrap_or_default();
        let mut candidates = self.volumes.by_index(&VOLUMES_BY_CLAIM, &key.to_string());
        candidates.extend(self.volumes.by_index(&FREE_VOLUMES_BY_CLASS, class));
        candidates
    }

    async fn claim(&self, key: &Key) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        if claim.metadata.deletion_timestamp.is_some() {
            let used = self.pods.by_index(&PODS_BY_CLAIM, &key.to_string()).iter().any(|p| !is_terminal(p));
            return if used { Ok(()) } else { write_finalizer(&api, &*claim, CLAIM_FINALIZER, false).await };
        }
        if !claim.finalizers().iter().any(|f| f == CLAIM_FINALIZER) {
            return write_finalizer(&api, &*claim, CLAIM_FINALIZER, true).await;
        }
        if is_bound(&claim) {
            return self.bound_claim(&api, &claim).await;
        }
        let all = self.candidates(key, &claim);
        match choose(&claim, all.iter().map(AsRef::as_ref)) {
            Choice::Bind(name) => match all.iter().find(|v| v.metadata.name.as_deref() == Some(name.as_str())) {
                Some(volume) => self.bind(&api, &claim, volume).await,
                None => Ok(()),
            },
            Choice::Pending(reason, message) => {
                self.event(&claim, Severity::Normal, reason, &message);
                let is_pending = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Pending");
                if is_pending { Ok(()) } else { self.claim_status(&api, &claim, json!({"phase": "Pending"})).await }
            }
        }
    }

    /// A claim that was bound stays so, or is lost, until its volume is there again; as upstream's `syncBoundClaim`.
    async fn bound_claim(&self, api: &Api<PersistentVolumeClaim>, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let volume = volume_of(claim).and_then(|name| self.volumes.get(&Key::new("", name)));
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        let (reason, message) = match volume {
            Some(volume) if !is_of_another(&volume, claim) => {
                return if phase == Some("Bound") { Ok(()) } else { self.bind(api, claim, &volume).await };
            }
            Some(_) => ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
            None => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
        };
        if phase == Some("Lost") {
            return Ok(());
        }
        self.event(claim, Severity::Warning, reason, message);
        self.claim_status(api, claim, json!({"phase": "Lost"})).await
    }

    /// The volume is written before the claim: once it names the claim, no other claim can bind it, wherever this is
    /// interrupted.
    async fn bind(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), Error> {
        let (claim_name, volume_name) = (claim.name_any(), volume.name_any());
        let holder = claim.metadata.uid.as_ref();
        if volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).and_then(|r| r.uid.as_ref()) != holder {
            let reference = ObjectReference { field_path: None, ..claim.object_ref(&()) };
            // The version makes it a condition: whoever was faster wins.
            let patch = json!({"metadata": {"resourceVersion": volume.metadata.resource_version}, "spec": {"claimRef": reference}});
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            api.patch(&volume_name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .during("bind the volume", &volume_name)?;
        }
        let set = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()) == Some(volume_name.as_str());
        let mut annotations = json!({BIND_COMPLETED: "yes"});
        if !set {
            annotations["pv.kubernetes.io/bound-by-controller"] = json!("yes");
        }
        let patch = json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume_name}});
        claims
            .patch(&claim_name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .during("bind the claim", &claim_name)?;
        let spec = volume.spec.as_ref();
        let status = json!({"phase": "Bound", "accessModes": spec.and_then(|s| s.access_modes.as_ref()),
            "capacity": spec.and_then(|s| s.capacity.as_ref())});
        self.claim_status(claims, claim, status).await
    }

    async fn claim_status(
        &self,
        api: &Api<PersistentVolumeClaim>,
        claim: &PersistentVolumeClaim,
        status: serde_json::Value,
    ) -> Result<(), Error> {
        let name = claim.name_any();
        let patch = Patch::Merge(json!({"metadata": {"uid": claim.metadata.uid}, "status": status}));
        let patched = api.patch_status(&name, &PatchParams::default(), &patch).await;
        error::ignore_deleted(patched).during("write the status of the claim", &name).map(drop)
    }

    async fn volume(&self, key: &Key) -> Result<(), Error> {
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let holder = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let claim = holder.and_then(|h| {
            self.claims.get(&Key::new(h.namespace.clone().unwrap_or_default(), h.name.clone().unwrap_or_default()))
        });
        let phase = phase(&volume, claim.as_deref());
        if volume.metadata.deletion_timestamp.is_some() {
            let used = phase == "Bound";
            return if used { Ok(()) } else { write_finalizer(&api, &*volume, VOLUME_FINALIZER, false).await };
        }
        if !volume.finalizers().iter().any(|f| f == VOLUME_FINALIZER) {
            return write_finalizer(&api, &*volume, VOLUME_FINALIZER, true).await;
        }
        if volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase) {
            return Ok(());
        }
        let name = volume.name_any();
        let patch = Patch::Merge(json!({"metadata": {"uid": volume.metadata.uid}, "status": {"phase": phase}}));
        let patched = api.patch_status(&name, &PatchParams::default(), &patch).await;
        error::ignore_deleted(patched).during("write the status of the volume", &name).map(drop)
    }

    /// Makes the claims of a pod's ephemeral volumes; they go with the pod.
    async fn pod(&self, key: &Key) -> Result<(), Error> {
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

    fn event(&self, claim: &PersistentVolumeClaim, severity: Severity, reason: &str, message: &str) {
        self.recorder.record(&claim.object_ref(&()), severity, reason, message);
    }
}

/// The claim that a volume belongs to or is reserved for.
fn holder_of(volume: &PersistentVolume) -> Option<Key> {
    let holder = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::new(holder.namespace.clone().unwrap_or_default(), holder.name.clone().unwrap_or_default()))
}

fn class_of(volume: &PersistentVolume) -> String {
    volume.spec.as_ref().and_then(|s| s.storage_class_name.clone()).unwrap_or_default()
}

fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty())
}

/// Whether the claim has been bound, whatever became of its volume.
fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(BIND_COMPLETED)
}
