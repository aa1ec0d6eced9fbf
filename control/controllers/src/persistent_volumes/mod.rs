//! Persistent volume controller: binds claims to volumes, asks provisioners for them, reports the phase of volumes
//! whose claims are gone, protects both with finalizers while they are used, and creates the claims of ephemeral
//! volumes. `claim`, `volume`, `matching`, `protection` and `messages` decide and are pure; `writes` writes. It knows
//! no provisioner: they cooperate by annotations, as in other clusters.

mod claim;
mod ephemeral;
mod matching;
mod messages;
mod metrics;
mod protection;
#[cfg(test)]
mod tests;
mod volume;
mod writes;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use windlass_kit::{events::Recorder, object_ref};

use super::{
    finalizers,
    indexes::PODS_BY_CLAIM,
    pods::{is_terminal, node_name},
    runtime::{Cache, CachedPod, Context, Controller, During as _, Error, Key, Live, Outcome, Step, WorkQueue},
    storage::{
        CLAIMS_BY_VOLUME, DEFAULT_CLASSES, FREE_VOLUMES_BY_CLASS, UNBOUND_CLAIMS_BY_CLASS, VOLUMES_BY_CLAIM,
        claim_phase, class_of_claim, class_of_volume, default_class, holder_of, is_bound, is_default, names_class,
        volume_of,
    },
};
use claim::{ClaimStep, Surroundings};
use ephemeral::EphemeralMetrics;
use messages::Note;
use metrics::VolumeMetrics;
use protection::{is_shut_down, uses};
use volume::{VolumeStep, is_used, needs_proof};

impl crate::runtime::Cached for PersistentVolume {}
impl crate::runtime::Cached for PersistentVolumeClaim {}
impl crate::runtime::Cached for StorageClass {}

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// How often the reason that a claim has no volume is reported again. Upstream retries every 15 s; here a claim is
/// queued when anything that concerns it changes.
const REMIND: Duration = Duration::from_secs(300);

/// When a claim is looked at again that may get a volume which is being made or taken.
const SOON: Duration = Duration::from_secs(1);

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

pub(crate) struct PersistentVolumeController {
    client: Client,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    pods: Cache<CachedPod>,
    queue: WorkQueue<QueueItem>,
    recorder: Recorder,
    ephemeral: Arc<EphemeralMetrics>,
    metrics: Arc<VolumeMetrics>,
}

impl Controller for PersistentVolumeController {
    const NAME: &'static str = "persistentvolume-binder-controller";
    const QUEUE: &'static str = "claims";
    type Key = QueueItem;
    type Config = ();

    fn subscribe(context: &mut Context<QueueItem>, (): ()) -> Self {
        let claims = context.informer::<PersistentVolumeClaim>();
        let volumes = context.informer::<PersistentVolume>();
        let classes = context.informer::<StorageClass>();
        let pods = context.informer::<CachedPod>();
        claims.index(&CLAIMS_BY_VOLUME).index(&UNBOUND_CLAIMS_BY_CLASS);
        volumes.index(&FREE_VOLUMES_BY_CLASS).index(&VOLUMES_BY_CLAIM);
        classes.index(&DEFAULT_CLASSES);
        pods.index(&PODS_BY_CLAIM);
        let (enqueue, cache, users) = (context.queue(), volumes.cache(), pods.cache());
        claims.on_change(move |old, new| {
            let Some(claim) = new.or(old) else { return };
            let key = Key::of(claim.meta());
            // An ephemeral volume needs another one, or gets the place of somebody else's.
            if new.is_none() {
                let pods = users.by_index(&PODS_BY_CLAIM, &key.to_string());
                pods.iter().for_each(|pod| enqueue.add(QueueItem::Pod(Key::of(&pod.metadata))));
            }
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
                for claim in cache.by_index(&UNBOUND_CLAIMS_BY_CLASS, class_of_volume(volume)) {
                    enqueue.add(QueueItem::Claim(Key::of(claim.meta())));
                }
            }
        });
        let (enqueue, cache) = (context.queue(), claims.cache());
        classes.on_change(move |old, new| {
            let Some(class) = new.or(old) else { return };
            let mut concerned = cache.by_index(&UNBOUND_CLAIMS_BY_CLASS, &class.name_any());
            if new.is_some_and(|class| is_default(class)) {
                let without = cache.by_index(&UNBOUND_CLAIMS_BY_CLASS, "");
                concerned.extend(without.into_iter().filter(|claim| !names_class(claim)));
            }
            concerned.iter().for_each(|claim| enqueue.add(QueueItem::Claim(Key::of(claim.meta()))));
        });
        let enqueue = context.queue();
        pods.on_change(move |old: Option<&Arc<CachedPod>>, new: Option<&Arc<CachedPod>>| {
            enqueue_pod(&enqueue, old.map(AsRef::as_ref), new.map(AsRef::as_ref));
        });
        let metrics: Arc<VolumeMetrics> = context.metrics().of();
        metrics.show(claims.cache(), volumes.cache());
        Self {
            client: context.client(),
            claims: claims.cache(),
            volumes: volumes.cache(),
            classes: classes.cache(),
            pods: pods.cache(),
            queue: context.queue(),
            recorder: context.recorder("persistentvolume-controller"),
            ephemeral: context.metrics().of(),
            metrics,
        }
    }

    async fn reconcile(&self, item: QueueItem) -> Result<Outcome, Error> {
        match item {
            QueueItem::Claim(key) => self.reconcile_claim(&key).await,
            QueueItem::Volume(key) => self.reconcile_volume(&key).await.map(|()| Outcome::Done),
            QueueItem::Pod(key) => self.reconcile_pod(&key).await.map(Outcome::from),
        }
    }
}

/// A pod's claims are queued when it is added, removed, terminal, shut down or bound; its ephemeral ones are then
/// created.
fn enqueue_pod(queue: &WorkQueue<QueueItem>, old: Option<&CachedPod>, new: Option<&CachedPod>) {
    let Some(pod) = new.or(old) else { return };
    if new.is_some() && pod.volumes().any(|v| v.ephemeral.is_some()) {
        queue.add(QueueItem::Pod(Key::of(&pod.metadata)));
    }
    let seen = |pod: Option<&CachedPod>| {
        pod.map(|pod| (is_terminal(pod), is_shut_down(pod), node_name(pod).map(str::to_owned)))
    };
    if seen(old) == seen(new) {
        return;
    }
    for claim in pod.claims() {
        queue.add(QueueItem::Claim(Key::new(pod.namespace().unwrap_or_default(), claim.name)));
    }
}

impl PersistentVolumeController {
    async fn reconcile_claim(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(Outcome::Done) };
        let api = self.claims_of(&key.namespace);
        if claim.metadata.deletion_timestamp.is_some() {
            return self.release_claim(key, &claim).await.map(Outcome::from);
        }
        if !claim.finalizers().iter().any(|f| f == CLAIM_FINALIZER) {
            return finalizers::hold(&api, &*claim, CLAIM_FINALIZER).await.map(|()| Outcome::Done);
        }
        let around = self.surroundings(key, &claim);
        match claim::decide(&claim, &around) {
            ClaimStep::Bind(name) => {
                match around.candidates.iter().find(|v| v.metadata.name.as_deref() == Some(name.as_str())) {
                    Some(volume) => self.bind(&claim, volume).await.map(|()| Outcome::Done),
                    None => Ok(Outcome::Done),
                }
            }
            ClaimStep::AssignClass(class) => {
                // Volumes that were made just before the claim count, whether the cache shows them yet or not.
                let listed = Live::list(&self.volumes_api()).await.during("list the volumes for", key)?;
                if matching::any_may_fit(&claim, listed.answer()) {
                    return Ok(Outcome::After(SOON));
                }
                let assigned = self.assign_class(&claim, &class).await;
                self.metrics.assigned.add([]);
                if assigned.is_err() {
                    self.metrics.failed.add([]);
                }
                assigned.map(|()| Outcome::Done)
            }
            ClaimStep::Wait(note) => {
                note.iter().for_each(|note| self.tell(&*claim, note));
                self.claim_status(&claim, "Pending", None).await?;
                Ok(if note.is_some() { Outcome::After(REMIND) } else { Outcome::Done })
            }
            ClaimStep::Provision(provisioner) => {
                self.ask_provisioner(&claim, &provisioner).await?;
                self.tell(&*claim, &messages::external_provisioning(&provisioner));
                Ok(Outcome::After(REMIND))
            }
            ClaimStep::Lose(note) => {
                if claim_phase(&claim) != "Lost" {
                    self.claim_status(&claim, "Lost", None).await?;
                    self.tell(&*claim, &note);
                }
                Ok(Outcome::Done)
            }
        }
    }

    /// Releases a claim that is being deleted, if no pod uses it, neither in the cache nor in the API. The caches of
    /// claims and pods are not in step, and a wrong release would lose the claim's data.
    async fn release_claim(&self, key: &Key, claim: &PersistentVolumeClaim) -> Result<Step, Error> {
        let cached = self.pods.by_index(&PODS_BY_CLAIM, &key.to_string());
        if cached.iter().any(|pod| uses(pod, claim)) {
            return Ok(Step::waits_for(&self.pods));
        }
        let api: Api<CachedPod> = Api::namespaced(self.client.clone(), &key.namespace);
        let pods = Live::list(&api).await.during("look for pods that use claim", key)?;
        let Some(unused) = pods.shows(|pods| !pods.iter().any(|pod| uses(pod, claim))) else {
            return Ok(Step::waits_for(&self.pods));
        };
        finalizers::let_go(&self.claims_of(&key.namespace), claim, CLAIM_FINALIZER, unused).await?;
        Ok(Step::Done)
    }

    fn surroundings(&self, key: &Key, claim: &PersistentVolumeClaim) -> Surroundings {
        if let Some(name) = volume_of(claim) {
            let candidates = self.volumes.get(&Key::new("", name)).into_iter().collect();
            return Surroundings { candidates, ..Surroundings::default() };
        }
        if is_bound(claim) {
            return Surroundings::default();
        }
        let class = class_of_claim(claim);
        let mut candidates = self.volumes.by_index(&VOLUMES_BY_CLAIM, &key.to_string());
        candidates.extend(self.volumes.by_index(&FREE_VOLUMES_BY_CLASS, class));
        let defaults = if names_class(claim) { Vec::new() } else { self.classes.by_index(&DEFAULT_CLASSES, "") };
        let pods = self.pods.by_index(&PODS_BY_CLAIM, &key.to_string());
        Surroundings {
            candidates,
            class: (!class.is_empty()).then(|| self.classes.get(&Key::new("", class))).flatten(),
            default_class: default_class(defaults.iter().map(AsRef::as_ref)).map(|class| class.name_any()),
            waiting_pods: pods
                .iter()
                .filter(|pod| !is_terminal(pod) && node_name(pod).is_none())
                .map(|pod| pod.name_any())
                .collect(),
        }
    }

    async fn reconcile_volume(&self, key: &Key) -> Result<(), Error> {
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let mut claim = holder_of(&volume).and_then(|holder| self.claims.get(&holder));
        if let Some(holder) = holder_of(&volume).filter(|_| needs_proof(&volume, claim.as_deref())) {
            let answer = self.claims_of(&holder.namespace).get_opt(&holder.name).await;
            claim = answer.during("look for the claim", &holder)?.map(Arc::new);
        }
        match volume::decide(&volume, claim.as_deref()) {
            VolumeStep::Keep => {}
            VolumeStep::Phase(phase) => self.volume_phase(&volume, phase, None).await?,
            VolumeStep::Fail(note) => {
                self.volume_phase(&volume, "Failed", Some(&note)).await?;
                self.tell(&*volume, &note);
            }
            VolumeStep::Unbind => self.unbind(&volume).await?,
            VolumeStep::LeaveToClaim => {
                holder_of(&volume).into_iter().for_each(|claim| self.queue.add(QueueItem::Claim(claim)));
            }
            VolumeStep::Mismatch { on_volume, on_claim } => {
                self.tell(&*volume, &on_volume);
                claim.iter().for_each(|claim| self.tell(&**claim, &on_claim));
            }
        }
        self.protect_volume(&volume, claim.as_deref()).await
    }

    /// Sets the finalizer of a volume, and takes it off one that is being deleted and not used
    /// (`pv_protection_controller.go`).
    async fn protect_volume(
        &self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(), Error> {
        let api = self.volumes_api();
        if volume.metadata.deletion_timestamp.is_none() {
            return finalizers::hold(&api, volume, VOLUME_FINALIZER).await;
        }
        if is_used(volume, claim) || !volume.finalizers().iter().any(|one| one == VOLUME_FINALIZER) {
            return Ok(());
        }
        let name = volume.name_any();
        let unused = match holder_of(volume) {
            Some(holder) => {
                let claim = Live::get(&self.claims_of(&holder.namespace), &holder.name).await;
                claim.during("look for the claim", &holder)?.shows(|claim| !is_used(volume, claim.as_ref()))
            }
            None => {
                let volume = Live::get(&api, &name).await.during("look at the volume", &name)?;
                volume.shows(|volume| volume.as_ref().is_none_or(|volume| holder_of(volume).is_none()))
            }
        };
        // Used after all, which its change or that of its claim is going to say.
        let Some(unused) = unused else { return Ok(()) };
        finalizers::let_go(&api, volume, VOLUME_FINALIZER, unused).await
    }

    fn tell<K: kube::Resource<DynamicType = ()>>(&self, object: &K, note: &Note) {
        self.recorder.record(&object_ref::of(object), note.severity, note.reason, note.message.as_str());
    }
}
