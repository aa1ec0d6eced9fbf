//! Claims of devices: they are made from the templates that pods name, pods with a node that others gave them get their
//! reservation, those of pods that are gone or have ended are taken back, and what was made for a pod goes with its end.
//! Upstream's resource claim controller (`pkg/controller/resourceclaim`), without groups of pods, which it has behind a gate
//! that is off. Who allocates devices is a scheduler's business. `plan` decides and is pure.

mod metrics;
mod plan;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    finalizers,
    pods::{is_active, is_controlled_by, node_name},
    runtime::{
        CACHE_PATIENCE, Cache, CachedPod, Context, Controller, During as _, Error, Index, Key, Live, Outcome, PerOwner,
        StatusWriter, Step, SyncPoint, error, same_object,
    },
};
use metrics::ClaimMetrics;
use plan::{FINALIZER, Named, for_pod, is_allocated, is_done, is_reserved, made_for, name_of, new_claim, owning_pod};

impl crate::runtime::Cached for ResourceClaim {}
impl crate::runtime::Cached for ResourceClaimTemplate {}

/// Upstream's field manager of the names in the pods' status.
const FIELD_MANAGER: &str = "ResourceClaimController";

/// Pods by the claims that they name or were given, as `namespace/claim`.
const PODS_BY_RESOURCE_CLAIM: Index<CachedPod> =
    Index::new("resource claim", |pod| plan::claim_names(pod).map(|name| key_in(pod, name).to_string()).collect());

/// Pods by the templates that they name, as `namespace/template`.
const PODS_BY_TEMPLATE: Index<CachedPod> = Index::new("resource claim template", |pod| {
    let templates = plan::claims_of(pod).filter_map(|claim| claim.resource_claim_template_name.as_deref());
    templates.map(|name| key_in(pod, name).to_string()).collect()
});

/// Claims by the UID of the pod that controls them.
const CLAIMS_BY_POD: Index<ResourceClaim> =
    Index::new("pod", |claim| owning_pod(claim).map(|owner| owner.uid.clone()).into_iter().collect());

fn key_in(pod: &CachedPod, name: &str) -> Key {
    Key::new(pod.metadata.namespace.clone().unwrap_or_default(), name)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum QueueItem {
    Pod(Key),
    Claim(Key),
}

impl fmt::Display for QueueItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod:{key}"),
            Self::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

/// What is remembered of one pod.
#[derive(Debug, Clone, Copy, Default)]
struct PodClaimState {
    /// The last claim that was made for it.
    made: Option<SyncPoint>,
    /// Whether a claim may have been made without an answer.
    in_doubt: bool,
}

pub(crate) struct ResourceClaimController {
    client: Client,
    pods: Cache<CachedPod>,
    claims: Cache<ResourceClaim>,
    templates: Cache<ResourceClaimTemplate>,
    statuses: StatusWriter<ResourceClaim>,
    states: PerOwner<PodClaimState>,
    recorder: Recorder,
    metrics: Arc<ClaimMetrics>,
}

impl Controller for ResourceClaimController {
    const NAME: &'static str = "resourceclaim-controller";
    const QUEUE: &'static str = "resource_claim";
    type Key = QueueItem;
    type Config = ();

    fn subscribe(context: &mut Context<QueueItem>, (): ()) -> Self {
        let pods = context.informer::<CachedPod>();
        let claims = context.informer::<ResourceClaim>();
        let templates = context.informer::<ResourceClaimTemplate>();
        pods.index(&PODS_BY_RESOURCE_CLAIM).index(&PODS_BY_TEMPLATE);
        claims.index(&CLAIMS_BY_POD);
        let queue = context.queue();
        pods.on_change(move |old: Option<&Arc<CachedPod>>, new| {
            let Some(pod) = new.or(old) else { return };
            if new.is_none_or(|pod| is_done(pod)) {
                plan::claim_names(pod).for_each(|name| queue.add(QueueItem::Claim(key_in(pod, name))));
            }
            if new.is_none() || plan::claims_of(pod).next().is_some() {
                queue.add(QueueItem::Pod(Key::of(&pod.metadata)));
            }
        });
        let (queue, users) = (context.queue(), pods.cache());
        claims.on_change(move |old, new| {
            let Some(claim) = new.or(old) else { return };
            let key = Key::of(&claim.metadata);
            let users = users.by_index(&PODS_BY_RESOURCE_CLAIM, &key.to_string());
            users.iter().for_each(|pod| queue.add(QueueItem::Pod(Key::of(&pod.metadata))));
            // Its name may not stand in the pod's status yet.
            if let Some(owner) = owning_pod(claim) {
                queue.add(QueueItem::Pod(Key::new(&key.namespace, &owner.name)));
            }
            if new.is_some() {
                queue.add(QueueItem::Claim(key));
            }
        });
        let (queue, users) = (context.queue(), pods.cache());
        templates.on_change(move |_, new: Option<&Arc<ResourceClaimTemplate>>| {
            let Some(template) = new else { return };
            let users = users.by_index(&PODS_BY_TEMPLATE, &Key::of(&template.metadata).to_string());
            users.iter().for_each(|pod| queue.add(QueueItem::Pod(Key::of(&pod.metadata))));
        });
        let metrics: Arc<ClaimMetrics> = context.metrics().of();
        metrics.show(claims.cache());
        Self {
            client: context.client(),
            pods: pods.cache(),
            claims: claims.cache(),
            templates: templates.cache(),
            statuses: StatusWriter::new(context.client(), claims.cache()),
            states: PerOwner::default(),
            recorder: context.recorder("resource_claim"),
            metrics,
        }
    }

    async fn reconcile(&self, item: QueueItem) -> Result<Outcome, Error> {
        match item {
            QueueItem::Pod(key) => self.reconcile_pod(&key).await,
            QueueItem::Claim(key) => self.reconcile_claim(&key).await,
        }
    }
}

impl ResourceClaimController {
    fn api(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn reconcile_pod(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(key) else {
            self.states.forget(key);
            return Ok(Outcome::Done);
        };
        // Upstream makes claims for pods that have ended too, and deletes them again.
        if !is_active(&pod) {
            return Ok(Outcome::Done);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let state = self.states.with(key, &uid, |state| *state);
        if state.made.is_some_and(|point| !self.claims.reached(point)) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let (mut names, mut steps) = (Vec::new(), Step::Done);
        let mut is_new = false;
        for claim in plan::claims_of(&pod) {
            match self.ensure_claim(key, &pod, claim).await? {
                Ensured::Known(name) => names.push((claim.name.clone(), name)),
                Ensured::New(name) => {
                    is_new = true;
                    names.push((claim.name.clone(), name));
                }
                Ensured::Nothing => {}
                Ensured::Not(step) => steps = steps.and(step),
            }
        }
        if is_new {
            self.name_claims(key, &pod, &names).await?;
        } else if node_name(&pod).is_some() {
            // The pod was bound without the scheduler, which reserves claims.
            for claim in plan::claim_names(&pod).filter_map(|name| self.claims.get(&key_in(&pod, name))) {
                if is_allocated(&claim) && !is_reserved(&claim, &uid) && may_use(&pod, &claim) {
                    self.reserve(&pod, &claim).await?;
                }
            }
        }
        Ok(steps.into())
    }

    /// Finds or makes the claim that a pod has named.
    async fn ensure_claim(&self, key: &Key, pod: &CachedPod, claim: &PodResourceClaim) -> Result<Ensured, Error> {
        let known = match name_of(pod, claim) {
            Named::Generated(name) => {
                let found = self
                    .claims
                    .get(&key_in(pod, name))
                    .filter(|found| is_controlled_by(&found.metadata, &pod.metadata));
                if found.is_some() {
                    return Ok(Ensured::Known(name.to_owned()));
                }
                self.claims.by_index(&CLAIMS_BY_POD, pod.metadata.uid.as_deref().unwrap_or_default())
            }
            Named::NotMade => self.claims.by_index(&CLAIMS_BY_POD, pod.metadata.uid.as_deref().unwrap_or_default()),
            // A user's claim is created by the user.
            Named::ByUser(_) | Named::NotNeeded => return Ok(Ensured::Nothing),
            Named::Unsupported => {
                let why = format!(
                    "checking for claim before creating it: pod \"{key}\", spec.resourceClaim {:?}: none of the supported fields are set",
                    claim.name
                );
                self.tell(pod, claim, &why);
                return Ok(Ensured::Not(Step::waits_for(&self.pods)));
            }
        };
        if let Some(found) = known.iter().find(|known| made_for(known, &claim.name)) {
            return Ok(Ensured::New(found.metadata.name.clone().unwrap_or_default()));
        }
        self.make(key, pod, claim).await
    }

    /// Makes a claim from the template, unless one was made without an answer.
    async fn make(&self, key: &Key, pod: &CachedPod, claim: &PodResourceClaim) -> Result<Ensured, Error> {
        let template_name = claim.resource_claim_template_name.as_deref().unwrap_or_default();
        let Some(template) = self.templates.get(&Key::new(&key.namespace, template_name)) else {
            let missing = format!("resourceclaimtemplate.resource.k8s.io {template_name:?} not found");
            self.tell(pod, claim, &format!("resource claim template {template_name:?}: {missing}"));
            return Ok(Ensured::Not(Step::waits_for(&self.templates)));
        };
        let (api, uid) = (self.api(&key.namespace), pod.metadata.uid.clone().unwrap_or_default());
        if self.states.with(key, &uid, |state| state.in_doubt) {
            let all = Live::list(&api).await.during("look for claims of", key)?;
            let found = all
                .answer()
                .iter()
                .find(|one| is_controlled_by(&one.metadata, &pod.metadata) && made_for(one, &claim.name));
            if let Some(found) = found {
                return Ok(Ensured::New(found.metadata.name.clone().unwrap_or_default()));
            }
        }
        let wanted = new_claim(pod, &claim.name, &template);
        match api.create(&PostParams::default(), &wanted).await {
            Ok(made) => {
                self.metrics.made(&made, "success");
                let point = self.claims.sync_point(made.metadata.resource_version.as_deref());
                self.states.with(key, &uid, |state| state.made = Some(point));
                Ok(Ensured::New(made.metadata.name.unwrap_or_default()))
            }
            // The pod is deleted with its namespace.
            Err(error) if error::is_namespace_terminating(&error) => Ok(Ensured::Not(Step::waits_for(&self.pods))),
            Err(error) => {
                self.metrics.made(&wanted, "failure");
                self.states.with(key, &uid, |state| state.in_doubt = true);
                // Upstream's text has the name, which is not known yet, at this place.
                self.tell(pod, claim, &format!("create ResourceClaim : {}", error::message(&error)));
                Ok(Ensured::Not(Step::Failed))
            }
        }
    }

    /// Writes the claims that were made for a pod into its status: all of them, since what is left out is removed.
    async fn name_claims(&self, key: &Key, pod: &CachedPod, names: &[(String, String)]) -> Result<(), Error> {
        let statuses: Vec<_> =
            names.iter().map(|(claim, name)| json!({"name": claim, "resourceClaimName": name})).collect();
        let patch = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": key.name, "uid": pod.metadata.uid},
            "status": {"resourceClaimStatuses": statuses}});
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch_status(&key.name, &params, &Patch::Apply(patch)).await;
        error::ignore_deleted(written).during("name the claims in the status of pod", key).map(drop)
    }

    async fn reserve(&self, pod: &CachedPod, claim: &ResourceClaim) -> Result<(), Error> {
        let mut reserved = claim.status.as_ref().and_then(|s| s.reserved_for.clone()).unwrap_or_default();
        reserved.push(ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        });
        self.statuses.write(claim, json!({"status": {"reservedFor": reserved}})).await
    }

    async fn reconcile_claim(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(key) else {
            self.statuses.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.statuses.is_shown(key, claim.metadata.uid.as_deref().unwrap_or_default()) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
        let mut remaining = Vec::new();
        for user in reserved {
            if !for_pod(user) || self.still_runs(key, &user.name, &user.uid).await? {
                remaining.push(user);
            }
        }
        let is_held = claim.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER);
        if remaining.len() < reserved.len() {
            let mut status = json!({"reservedFor": remaining});
            // The last user releases the devices; a claim that is allocated but not used yet keeps them.
            if remaining.is_empty() && is_held {
                status["allocation"] = json!(null);
            }
            self.statuses.write(&claim, json!({"status": status})).await?;
            // Not later: a scheduler holds a claim first and allocates then.
            if remaining.is_empty() && is_held {
                self.let_go(key).await?;
            }
        } else if remaining.is_empty() && is_held && claim.metadata.deletion_timestamp.is_some() {
            if is_allocated(&claim) {
                self.statuses.write(&claim, json!({"status": {"allocation": null}})).await?;
            }
            self.let_go(key).await?;
        }
        if remaining.is_empty() {
            self.delete_unused(key, &claim).await?;
        }
        Ok(Outcome::Done)
    }

    /// Whether the pod of a reservation may still use it: a cache may say so, only the API that it is not so.
    async fn still_runs(&self, claim: &Key, name: &str, uid: &str) -> Result<bool, Error> {
        let is_it = |pod: &CachedPod| pod.metadata.uid.as_deref() == Some(uid) && !is_done(pod);
        let cached = self.pods.get(&Key::new(&claim.namespace, name));
        if cached.is_some_and(|pod| is_it(&pod)) {
            return Ok(true);
        }
        let api: Api<CachedPod> = Api::namespaced(self.client.clone(), &claim.namespace);
        let live = Live::get(&api, name).await.during("look for the pod of a reservation of", claim)?;
        Ok(live.answer().as_ref().is_some_and(is_it))
    }

    /// Takes the finalizer off a claim that holds no device.
    async fn let_go(&self, key: &Key) -> Result<(), Error> {
        let api = self.api(&key.namespace);
        let live = Live::get(&api, &key.name).await.during("look at the allocation of", key)?;
        let unused = live.shows(|live| live.as_ref().is_some_and(|live| !is_allocated(live) && plan::is_free(live)));
        match (live.answer(), unused) {
            (Some(claim), Some(unused)) => finalizers::let_go(&api, claim, FINALIZER, unused).await,
            _ => Ok(()),
        }
    }

    /// Deletes a claim that was made for a pod which does not run any more. That the pod is gone is the collector's business.
    async fn delete_unused(&self, key: &Key, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(owner) = owning_pod(claim).filter(|_| claim.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        if self.pods.get(&Key::new(&key.namespace, &owner.name)).is_none()
            || self.still_runs(key, &owner.name, &owner.uid).await?
        {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(same_object(&claim.metadata));
        let deleted = self.api(&key.namespace).delete(&key.name, &params).await;
        error::ignore_deleted(deleted).during("delete the unused claim", key).map(drop)
    }

    fn tell(&self, pod: &CachedPod, claim: &PodResourceClaim, why: &str) {
        let message = format!("PodResourceClaim {}: {why}", claim.name);
        self.recorder.record(&object_ref::of(pod), Severity::Warning, "FailedResourceClaimCreation", message.as_str());
    }
}

/// How it stands with one claim of a pod.
enum Ensured {
    /// It exists, and the pod's status has its name.
    Known(String),
    /// It exists, and the pod's status has to be updated.
    New(String),
    /// None was to be made.
    Nothing,
    /// It does not exist.
    Not(Step),
}

/// Whether a pod may use a claim: one that was made for another pod is that pod's.
fn may_use(pod: &CachedPod, claim: &ResourceClaim) -> bool {
    owning_pod(claim).is_none() || is_controlled_by(&claim.metadata, &pod.metadata)
}
