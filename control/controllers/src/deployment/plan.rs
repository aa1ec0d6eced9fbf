//! What a Deployment's ReplicaSets and status become next. Pure.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet};
use kube::ResourceExt as _;
use windlass_kit::objects::label_selector::Selector;

use super::{
    annotations, messages, progress,
    replica_sets::{self, Set},
    rollback::{self, Rollback},
    scaling::{grow_new, is_scaling_event, next_size_of_new, resize, scale, shrink_old},
    steps::{Step, Update},
    strategy::{Limits, is_recreate, progress_deadline},
    template,
};
use crate::pods;

/// A Deployment and what belongs to it.
#[derive(Debug)]
pub(super) struct Observed<'a> {
    pub(super) deployment: &'a Deployment,
    /// The ReplicaSets that it controls.
    pub(super) sets: &'a [Arc<ReplicaSet>],
    /// Pods that are not terminal, by the UID of their ReplicaSet; only for the strategy Recreate.
    pub(super) pods: &'a HashMap<String, usize>,
}

/// The writes of one pass, in this order: ReplicaSets, then the Deployment's status with its revision.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The first that fails ends the pass.
    pub(super) steps: Vec<Step>,
    /// `None` when it does not change.
    pub(super) status: Option<DeploymentStatus>,
    /// The Deployment's annotation, if it changes.
    pub(super) revision: Option<String>,
    /// What becomes of a request for an earlier revision, after all of that.
    pub(super) rollback: Option<Rollback>,
    /// When the deadline of the rollout passes.
    pub(super) recheck: Option<Duration>,
    /// It selects all pods, which is refused.
    pub(super) selects_all: bool,
}

/// A pass over a Deployment, as far as it is planned.
struct Pass<'a> {
    observed: &'a Observed<'a>,
    spec: &'a DeploymentSpec,
    limits: Limits,
    new: Option<Set>,
    /// Oldest first.
    old: Vec<Set>,
    conditions: Vec<DeploymentCondition>,
    steps: Vec<Step>,
    rollback: Option<Rollback>,
    now: Timestamp,
}

/// Plans the next pass. Upstream's `syncDeployment`.
pub(super) fn reconcile(observed: &Observed<'_>, now: Timestamp) -> Plan {
    let deployment = observed.deployment;
    let Some(spec) = &deployment.spec else { return Plan::default() };
    if Selector::from(&spec.selector).is_empty() {
        let mut status = deployment.status.clone().unwrap_or_default();
        let seen = status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0);
        status.observed_generation = deployment.metadata.generation;
        return Plan { status: (!seen).then_some(status), selects_all: true, ..Plan::default() };
    }
    let (new, old) = replica_sets::split(spec, observed.sets);
    let conditions = deployment.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let limits = Limits::of(spec);
    let mut pass = Pass { observed, spec, limits, new, old, conditions, steps: Vec::new(), rollback: None, now };
    let judged = if deployment.metadata.deletion_timestamp.is_some() { false } else { pass.decide() };
    pass.finish(judged)
}

impl Pass<'_> {
    /// Decides on the steps; returns whether the rollout's progress is to be judged.
    fn decide(&mut self) -> bool {
        progress::note_pause(self.observed.deployment, &mut self.conditions, self.now);
        self.keep_new_up_to_date();
        let (is_paused, rolling) = (self.spec.paused.unwrap_or(false), !is_recreate(self.spec));
        if let Some(wanted) = rollback::wanted(self.observed.deployment).filter(|_| !is_paused) {
            if self.new.is_none() {
                self.create_new();
            }
            let sets: Vec<_> = self.old.iter().chain(&self.new).map(|set| &set.object).collect();
            self.rollback = Some(rollback::decide(self.observed.deployment, self.spec, &sets, wanted));
            // Nothing else happens before the request is gone: the next pass would not know what it is about.
            return false;
        }
        // Recreate scales nothing proportionally: it continues to scale down the old ReplicaSets, then sizes the new
        // one.
        let shares = rolling || self.old.iter().chain(&self.new).filter(|set| set.is_active()).count() < 2;
        if is_paused || (shares && is_scaling_event(self.new.as_ref(), &self.old, self.limits)) {
            let observed = self.observed.deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or(0);
            // Between the end of the old pods and the first new one, the size waits as well.
            if rolling || !self.old_pods_run() || self.old.iter().chain(&self.new).any(Set::is_active) {
                scale(self.new.as_mut(), &mut self.old, self.limits, observed, rolling, &mut self.steps);
            }
            if is_paused {
                self.clean_up();
            }
            return false;
        }
        let moved = if is_recreate(self.spec) { self.recreate() } else { self.roll() };
        let status = self.observed.deployment.status.as_ref();
        if !moved && status.is_some_and(|s| progress::is_complete(self.observed.deployment, s, self.limits)) {
            self.clean_up();
        }
        true
    }

    /// Gives the new ReplicaSet the revision, annotations and readiness of the Deployment.
    fn keep_new_up_to_date(&mut self) {
        let newest = replica_sets::highest_revision(&self.old).saturating_add(1);
        let Some(new) = &mut self.new else { return };
        let annotations = annotations::for_newest(self.observed.deployment, &new.object, newest);
        let wanted = self.spec.min_ready_seconds.unwrap_or(0);
        let present = new.object.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        let min_ready_seconds = (wanted != present).then_some(wanted);
        if min_ready_seconds.is_some() || !annotations.is_empty() {
            let mut object = ReplicaSet::clone(&new.object);
            object.metadata.annotations.get_or_insert_default().extend(annotations.clone());
            let set = std::mem::replace(&mut new.object, Arc::new(object));
            self.steps.push(Step::Update(Update { set, annotations, min_ready_seconds, scaled: None }));
        }
        let is_watched = progress_deadline(self.observed.deployment).is_some();
        if is_watched && progress::find(&self.conditions, messages::PROGRESSING).is_none() {
            let (reason, text) = (messages::FOUND_NEW_REPLICA_SET, messages::found(new.name()));
            let found = progress::condition(messages::PROGRESSING, "True", reason, text, self.now);
            progress::set(&mut self.conditions, found);
        }
    }

    /// Plans the new ReplicaSet with as many pods as it may have at first. Upstream's `getNewReplicaSet`.
    fn create_new(&mut self) {
        let deployment = self.observed.deployment;
        let mut object = template::new_set(deployment, self.spec);
        let size = if is_recreate(self.spec) {
            self.limits.replicas
        } else {
            next_size_of_new(0, replica_sets::total(&self.old), self.limits)
        };
        let newest = replica_sets::highest_revision(&self.old).saturating_add(1);
        let mut annotations = annotations::for_newest(deployment, &object, newest);
        annotations.extend(annotations::for_size(&object, self.limits));
        object.metadata.annotations = Some(annotations);
        if let Some(spec) = &mut object.spec {
            spec.replicas = Some(size);
        }
        let object = Arc::new(object);
        let new = Set::new(&object);
        if progress_deadline(deployment).is_some() {
            let (reason, text) = (messages::NEW_REPLICA_SET_CREATED, messages::created(new.name()));
            let created = progress::condition(messages::PROGRESSING, "True", reason, text, self.now);
            progress::set(&mut self.conditions, created);
        }
        self.new = Some(new);
        self.steps.push(Step::Create(object));
    }

    /// One step of a rolling update. Returns whether any size changes. Upstream's `rolloutRolling`.
    fn roll(&mut self) -> bool {
        if self.new.is_none() {
            self.create_new();
        }
        let Some(new) = &mut self.new else { return false };
        grow_new(new, &self.old, self.limits, &mut self.steps)
            || shrink_old(new, &mut self.old, self.limits, &mut self.steps)
    }

    /// The strategy Recreate: no old pod and no new one at the same time. Returns whether any size changes.
    /// Upstream's `rolloutRecreate`.
    fn recreate(&mut self) -> bool {
        let mut scaled = false;
        for set in self.old.iter_mut().filter(|set| set.is_active()) {
            scaled |= resize(set, 0, self.limits, &mut self.steps);
        }
        if scaled || self.old_pods_run() {
            return true;
        }
        if self.new.is_none() {
            self.create_new();
        }
        let Some(new) = &mut self.new else { return false };
        new.replicas != self.limits.replicas && resize(new, self.limits.replicas, self.limits, &mut self.steps)
    }

    /// Upstream's `oldPodsRunning`.
    fn old_pods_run(&self) -> bool {
        self.old.iter().any(|set| {
            let uid = set.object.metadata.uid.as_deref().unwrap_or_default();
            set.actual() > 0 || self.observed.pods.get(uid).is_some_and(|count| *count > 0)
        })
    }

    /// Deletes the oldest ReplicaSets of which nothing is left, above the limit of history. Upstream's `cleanupDeployment`.
    fn clean_up(&mut self) {
        let limit = self.spec.revision_history_limit.filter(|limit| *limit != i32::MAX);
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { return };
        let mut kept: Vec<&Set> =
            self.old.iter().filter(|set| set.object.metadata.deletion_timestamp.is_none()).collect();
        // Stable: of equal revisions the older ReplicaSet stays first.
        kept.sort_by_key(|set| annotations::revision(&set.object));
        let surplus = kept.len().saturating_sub(limit);
        let spent = kept.into_iter().take(surplus).filter(|set| replica_sets::is_spent(set));
        self.steps.extend(spent.map(|set| Step::Delete(Arc::clone(&set.object))));
    }

    fn finish(self, judged: bool) -> Plan {
        let Self { observed, limits, new, old, conditions, steps, rollback, now, .. } = self;
        let (deployment, new) = (observed.deployment, new.as_ref());
        let mut status = progress::calculate(deployment, conditions, new, &old, limits, now);
        let mut recheck = None;
        if judged {
            progress::judge(deployment, &mut status, new, &old, limits, now);
            recheck = progress::recheck(deployment, &status, limits, now);
        }
        let revision = new.and_then(|new| annotations::get(&*new.object, annotations::REVISION));
        let present = deployment.annotations().get(annotations::REVISION).map(String::as_str);
        let deleting = deployment.metadata.deletion_timestamp.is_some();
        let revision = revision.filter(|revision| !deleting && Some(*revision) != present).map(str::to_owned);
        let before = progress::canonical(deployment.status.clone().unwrap_or_default());
        let status = (status != before).then_some(status);
        Plan { steps, status, revision, rollback, recheck, selects_all: false }
    }
}

/// The status of a Deployment whose new ReplicaSet could not be created.
pub(super) fn create_failed(
    deployment: &Deployment,
    set: &str,
    error: &str,
    now: Timestamp,
) -> Option<DeploymentStatus> {
    progress_deadline(deployment)?;
    let mut status = deployment.status.clone().unwrap_or_default();
    let before = status.clone();
    let (reason, text) = (messages::REPLICA_SET_CREATE_ERROR, messages::create_failed(set, error));
    let failed = progress::condition(messages::PROGRESSING, "False", reason, text, now);
    progress::set(status.conditions.get_or_insert_default(), failed);
    (status != before).then_some(status)
}

/// The status of a Deployment whose new ReplicaSet would have the name of another: the next hash is another one.
pub(super) fn collided(deployment: &Deployment) -> DeploymentStatus {
    let mut status = deployment.status.clone().unwrap_or_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
    status
}

/// Whether a ReplicaSet that stands in the way of the new one is the new one itself.
pub(super) fn is_ours(deployment: &Deployment, found: &ReplicaSet) -> bool {
    let template = found.spec.as_ref().and_then(|spec| spec.template.as_ref());
    pods::is_controlled_by(&found.metadata, &deployment.metadata)
        && deployment
            .spec
            .as_ref()
            .zip(template)
            .is_some_and(|(spec, t)| template::same_but_for_hash(t, &spec.template))
}
