//! Local-path provisioner: makes a directory of this machine for each claim of its storage class, and removes it when a
//! released volume is to be deleted; what Rancher's local-path-provisioner does in other clusters. The agent mounts the
//! volumes, which are of kind `local`: as those it gives them to a pod's fsGroup, and starts no pod without their directory.
//!
//! `plan` and `messages` decide and are pure; `directories` is all that touches files. Data is removed only of a volume
//! that the API already deletes and whose claim is gone, so that no other claim gets it meanwhile; the volume is
//! removed last. After an interruption, the next attempt continues. A directory without a volume is logged and left
//! alone.

mod directories;
mod messages;
mod plan;
mod storage_class;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    backoff::Backoff,
    blocking::FILES,
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    finalizers,
    runtime::{
        Cache, CachedNode, Context, Controller, During as _, Error, Index, Key, Live, Outcome, Proof, error,
        same_version,
    },
    storage::{
        LOCAL_PATH_PROVISIONER, SELECTED_NODE, UNBOUND_CLAIMS_BY_CLASS, annotation, class_of_claim, is_local_path,
        volume_of,
    },
};
use plan::{ClaimStep, VolumeStep};

/// Holds a volume until its data is removed; that of every external provisioner (`finalizerPV`).
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// First and longest delay after an attempt to make the storage class.
const CLASS_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Volumes that are directories, by their path and all above it.
const VOLUMES_BY_PATH: Index<PersistentVolume> =
    Index::new("path", |volume| plan::path_of(volume).map(plan::path_and_parents).unwrap_or_default());

/// Where volumes are.
#[derive(Debug, Clone)]
pub struct Place {
    /// The name of this machine's node.
    pub node: String,
    /// The directory of their directories.
    pub dir: PathBuf,
}

/// A queue key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum QueueItem {
    Claim(Key),
    Volume(Key),
}

impl std::fmt::Display for QueueItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Claim(key) | Self::Volume(key)) = self;
        write!(f, "{key}")
    }
}

pub(crate) struct LocalPathProvisioner {
    client: Client,
    place: Place,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    nodes: Cache<CachedNode>,
    recorder: Recorder,
}

impl Controller for LocalPathProvisioner {
    const NAME: &'static str = "local-path-provisioner";
    type Key = QueueItem;
    type Config = Place;

    fn subscribe(context: &mut Context<QueueItem>, place: Place) -> Self {
        let claims = context.informer::<PersistentVolumeClaim>();
        let volumes = context.informer::<PersistentVolume>();
        let (classes, nodes) = (context.informer::<StorageClass>(), context.informer::<CachedNode>());
        volumes.index(&VOLUMES_BY_PATH);
        claims.index(&UNBOUND_CLAIMS_BY_CLASS);
        let (enqueue, waiting) = (context.queue(), claims.cache());
        classes.on_change(move |_, new| {
            // A claim may have been made, and given to this provisioner, before its class was here.
            for claim in new.iter().flat_map(|class| waiting.by_index(&UNBOUND_CLAIMS_BY_CLASS, &class.name_any())) {
                enqueue.add(QueueItem::Claim(Key::of(claim.meta())));
            }
        });
        let enqueue = context.queue();
        claims.on_change(move |_, new| {
            // A bound one may have grown.
            if let Some(claim) = new.filter(|claim| plan::is_asked(claim)) {
                enqueue.add(QueueItem::Claim(Key::of(claim.meta())));
            }
        });
        let enqueue = context.queue();
        volumes.on_change(move |_, new| {
            if let Some(volume) = new.filter(|volume| is_local_path(volume)) {
                enqueue.add(QueueItem::Volume(Key::of(volume.meta())));
                super::storage::holder_of(volume).into_iter().for_each(|claim| enqueue.add(QueueItem::Claim(claim)));
            }
        });
        let recorder = context.recorder(&format!("{LOCAL_PATH_PROVISIONER}_{}", place.node));
        Self {
            client: context.client(),
            place,
            claims: claims.cache(),
            volumes: volumes.cache(),
            classes: classes.cache(),
            nodes: nodes.cache(),
            recorder,
        }
    }

    async fn run(&self, shutdown: CancellationToken) {
        let once = async {
            self.tell_orphans().await;
            self.make_class().await;
        };
        let _ = shutdown.run_until_cancelled(once).await;
    }

    async fn reconcile(&self, item: QueueItem) -> Result<Outcome, Error> {
        match item {
            QueueItem::Claim(key) => self.reconcile_claim(&key).await,
            QueueItem::Volume(key) => self.reconcile_volume(&key).await,
        }
        .map(|()| Outcome::Done)
    }
}

impl LocalPathProvisioner {
    /// Makes the storage class, or takes it along to another name of the node.
    async fn make_class(&self) {
        let mut backoff = Backoff::new(CLASS_BACKOFF.0, CLASS_BACKOFF.1);
        while let Err(error) = storage_class::ensure(&self.client, &self.classes.all(), &self.place.node).await {
            tracing::warn!(%error, "failed to make the storage class local-path; retrying");
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    async fn reconcile_claim(&self, key: &Key) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let class = self.classes.get(&Key::new("", class_of_claim(&claim)));
        let volume = volume_of(&claim).map(str::to_owned).or_else(|| plan::volume_name(&claim));
        let volume = volume.and_then(|name| self.volumes.get(&Key::new("", name)));
        let node = annotation(&claim.metadata, SELECTED_NODE).and_then(|node| self.nodes.get(&Key::new("", node)));
        let step = plan::claim_step(&self.place, &claim, class.as_deref(), volume.as_deref(), node.as_deref());
        match step {
            ClaimStep::Nothing => Ok(()),
            ClaimStep::Provision { directory, volume } => self.provision(&claim, directory, &volume).await,
            ClaimStep::Fail(why) => {
                self.tell(&*claim, Severity::Warning, messages::PROVISIONING_FAILED, &why);
                Ok(())
            }
            ClaimStep::Reschedule(why) => {
                self.tell(&*claim, Severity::Warning, messages::PROVISIONING_FAILED, &why);
                let patch = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
                self.patch_claim(&claim, patch, false).await
            }
            ClaimStep::GrowVolume(size) => {
                let Some(volume) = volume else { return Ok(()) };
                let version = &volume.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"capacity": {"storage": size}}});
                let (api, name) = (self.volumes_api(), volume.name_any());
                let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                error::ignore_deleted(patched).during("expand the volume", &name).map(drop)
            }
            ClaimStep::ShowCapacity(size) => {
                self.patch_claim(&claim, json!({"status": {"capacity": {"storage": size}}}), true).await?;
                self.tell(&*claim, Severity::Normal, messages::RESIZED, messages::RESIZED_TEXT);
                Ok(())
            }
        }
    }

    /// Patches the version of a claim that was seen.
    async fn patch_claim(
        &self,
        claim: &PersistentVolumeClaim,
        mut patch: serde_json::Value,
        status: bool,
    ) -> Result<(), Error> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), claim.metadata.namespace.as_deref().unwrap_or_default());
        patch["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
        let (name, patch, params) = (claim.name_any(), Patch::Merge(patch), PatchParams::default());
        let patched = if status {
            api.patch_status(&name, &params, &patch).await
        } else {
            api.patch(&name, &params, &patch).await
        };
        error::ignore_deleted(patched).during("write the claim", &name).map(drop)
    }

    /// Makes the directory, then the volume: one without its directory would be of no use.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        directory: String,
        volume: &PersistentVolume,
    ) -> Result<(), Error> {
        let (key, name) = (Key::of(&claim.metadata), volume.name_any());
        self.tell(claim, Severity::Normal, messages::PROVISIONING, &messages::provisioning(&key.to_string()));
        let failed = |why: String| {
            let text = messages::failed(class_of_claim(claim), &why);
            self.tell(claim, Severity::Warning, messages::PROVISIONING_FAILED, &text);
        };
        let dir = self.place.dir.clone();
        let path = dir.join(&directory);
        if let Err(source) = FILES.io(move || directories::make(&dir, &directory)).await {
            failed(format!("the directory {} could not be made: {source}", path.display()));
            return Err(Error::Directory { action: "make", path, source });
        }
        match self.volumes_api().create(&PostParams::default(), volume).await {
            // Made before, which the cache does not show yet; it enqueues the claim.
            Err(error) if error::is_already_exists(&error) => Ok(()),
            Err(error) => {
                failed(error::message(&error));
                Err(error).during("make the volume", &name)
            }
            Ok(_) => {
                self.tell(claim, Severity::Normal, messages::PROVISIONING_SUCCEEDED, &messages::succeeded(&name));
                Ok(())
            }
        }
    }

    fn volume_step(&self, volume: &PersistentVolume) -> VolumeStep {
        let node = self.nodes.get(&Key::new("", self.place.node.as_str()));
        let labels = node
            .and_then(|node| node.metadata.labels.clone())
            .unwrap_or_else(|| BTreeMap::from([(plan::HOSTNAME.to_owned(), self.place.node.clone())]));
        let at_path = plan::path_of(volume).map(|path| self.volumes.by_index(&VOLUMES_BY_PATH, &plan::normal(path)));
        let sharing: Vec<&PersistentVolume> = at_path.iter().flatten().map(AsRef::as_ref).collect();
        plan::volume_step(&self.place, volume, &labels, &sharing)
    }

    async fn reconcile_volume(&self, key: &Key) -> Result<(), Error> {
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let api = self.volumes_api();
        match self.volume_step(&volume) {
            VolumeStep::Nothing => Ok(()),
            VolumeStep::Finalizer(true) => finalizers::hold(&api, &*volume, FINALIZER).await,
            VolumeStep::Finalizer(false) => {
                let live = Live::get(&api, &key.name).await.during("look at the volume", key)?;
                let is_same = |v: &PersistentVolume| matches!(self.volume_step(v), VolumeStep::Finalizer(false));
                match live.shows(|volume| volume.as_ref().is_some_and(is_same)) {
                    Some(proof) => finalizers::let_go(&api, &*volume, FINALIZER, proof).await,
                    // Its change is on its way here.
                    None => Ok(()),
                }
            }
            VolumeStep::Delete => {
                let params = DeleteParams::default().preconditions(same_version(&volume.metadata));
                let deleted = api.delete(&key.name, &params).await;
                error::ignore_deleted(deleted).during("delete the volume", key).map(drop)
            }
            VolumeStep::Erase(_) => {
                // A user may have kept the volume meanwhile, and with it its data.
                let live = Live::get(&api, &key.name).await.during("look at the volume", key)?;
                let Some(current) = live.answer() else { return Ok(()) };
                let VolumeStep::Erase(directory) = self.volume_step(current) else { return Ok(()) };
                match live.shows(Option::is_some) {
                    Some(proof) => self.erase(current, directory, proof).await,
                    None => Ok(()),
                }
            }
            VolumeStep::Refuse(why) => {
                self.tell(&*volume, Severity::Warning, messages::VOLUME_FAILED_DELETE, &why);
                Ok(())
            }
        }
    }

    async fn erase(&self, volume: &PersistentVolume, directory: String, proof: Proof) -> Result<(), Error> {
        let dir = self.place.dir.clone();
        let path = dir.join(&directory);
        tracing::info!(volume = %volume.name_any(), path = %path.display(), "removing the data of a deleted volume");
        if let Err(source) = FILES.io(move || directories::erase(&dir, &directory)).await {
            let text = format!("{} could not be removed: {source}", path.display());
            self.tell(volume, Severity::Warning, messages::VOLUME_FAILED_DELETE, &text);
            return Err(Error::Directory { action: "remove", path, source });
        }
        finalizers::let_go(&self.volumes_api(), volume, FINALIZER, proof).await
    }

    /// Names directories that no volume has: data that somebody has kept, or that a volume has left behind.
    async fn tell_orphans(&self) {
        let dir = self.place.dir.clone();
        let found = match FILES.io(move || directories::list(&dir)).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::warn!(dir = %self.place.dir.display(), %error, "failed to read the directory of volumes");
            }
        };
        for orphan in plan::orphans(&found, |volume| self.volumes.get(&Key::new("", volume)).is_some()) {
            let path = self.place.dir.join(orphan);
            tracing::warn!(path = %path.display(), "no volume has this directory; remove it if nobody needs its data");
        }
    }

    fn tell<K: Resource<DynamicType = ()>>(&self, object: &K, severity: Severity, reason: &str, text: &str) {
        self.recorder.record(&object_ref::of(object), severity, reason, text);
    }
}
