//! The ReplicaSets of a Deployment, and what is counted of them. Pure.

use std::{cmp::Ordering, sync::Arc};

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};

use super::{annotations, template::same_but_for_hash};

/// A ReplicaSet with the size that it has or gets.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub(super) object: Arc<ReplicaSet>,
    pub(super) replicas: i32,
}

impl Set {
    pub(super) fn new(object: &Arc<ReplicaSet>) -> Self {
        let replicas = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        Self { object: Arc::clone(object), replicas }
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    fn status(&self, count: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> Option<i32>) -> i32 {
        self.object.status.as_ref().and_then(count).unwrap_or(0)
    }

    pub(super) fn ready(&self) -> i32 {
        self.status(|status| status.ready_replicas)
    }

    pub(super) fn available(&self) -> i32 {
        self.status(|status| status.available_replicas)
    }

    /// The pods that there are, whatever the wanted size.
    pub(super) fn actual(&self) -> i32 {
        self.status(|status| Some(status.replicas))
    }

    /// Whether the status is of the size that the ReplicaSet has.
    fn is_observed(&self) -> bool {
        let observed = self.object.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
        self.object.metadata.generation.unwrap_or(0) <= observed
    }

    /// The most pods that can be available and stay. A status may be older than the size: pods above it are as good as gone.
    pub(super) fn available_at_most(&self) -> i32 {
        self.available().min(self.replicas)
    }

    /// The pods that are certainly available. None by a status older than the spec: the ReplicaSet may have been scaled
    /// down and up since, and its new pods are not available yet.
    pub(super) fn available_at_least(&self) -> i32 {
        if self.is_observed() { self.available_at_most() } else { 0 }
    }

    pub(super) fn is_active(&self) -> bool {
        self.replicas > 0
    }

    /// Older ones first; the name decides between two of the same second.
    pub(super) fn by_age(&self, other: &Self) -> Ordering {
        let age = |set: &Self| set.object.metadata.creation_timestamp.as_ref().map(|created| created.0);
        // One that is not created yet is the newest.
        let order = match (age(self), age(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        };
        order.then_with(|| self.name().cmp(other.name()))
    }
}

/// The new ReplicaSet, which has the Deployment's template, and the others, oldest first. Of several with that template,
/// the oldest is the new one.
pub(super) fn split(spec: &DeploymentSpec, objects: &[Arc<ReplicaSet>]) -> (Option<Set>, Vec<Set>) {
    let mut old: Vec<Set> = objects.iter().map(Set::new).collect();
    old.sort_by(Set::by_age);
    let has_template = |set: &Set| {
        let template = set.object.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.is_some_and(|template| same_but_for_hash(template, &spec.template))
    };
    let new = old.iter().position(has_template).map(|at| old.remove(at));
    (new, old)
}

pub(super) fn total(sets: &[Set]) -> i32 {
    sets.iter().fold(0, |sum, set| sum.saturating_add(set.replicas))
}

pub(super) fn highest_revision(sets: &[Set]) -> i64 {
    sets.iter().map(|set| annotations::revision(&set.object)).max().unwrap_or(0)
}

/// Whether nothing is left of a ReplicaSet, and it may be deleted when history is too long.
pub(super) fn is_spent(set: &Set) -> bool {
    set.replicas == 0 && set.actual() == 0 && set.is_observed() && set.object.metadata.deletion_timestamp.is_none()
}
