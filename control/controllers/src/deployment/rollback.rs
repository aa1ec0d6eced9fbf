//! The deprecated annotation that asks for an earlier revision. Upstream's rollback.go. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use kube::ResourceExt as _;
use windlass_kit::events::Severity;

use super::{
    annotations, messages,
    template::{HASH_LABEL, same_but_for_hash},
};

/// What becomes of the request; in any case it is taken off the Deployment.
#[derive(Debug)]
pub(super) struct Rollback {
    /// Whose template and annotations the Deployment gets.
    pub(super) to: Option<Arc<ReplicaSet>>,
    pub(super) severity: Severity,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

impl Rollback {
    fn refused(reason: &'static str, text: String) -> Self {
        Self { to: None, severity: Severity::Warning, reason, text }
    }
}

/// The revision that is asked for; 0 for the one before the newest. What is no number is ignored. Upstream's
/// `getRollbackTo`.
pub(super) fn wanted(deployment: &Deployment) -> Option<i64> {
    annotations::get(deployment, annotations::ROLLBACK_TO)?.parse().ok()
}

/// Decides on a rollback to a revision of one of the ReplicaSets, the newest among them.
pub(super) fn decide(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &[&Arc<ReplicaSet>],
    wanted: i64,
) -> Rollback {
    let wanted = if wanted == 0 { last_revision(sets) } else { wanted };
    if wanted == 0 {
        return Rollback::refused(messages::ROLLBACK_REVISION_NOT_FOUND, messages::NO_LAST_REVISION.to_owned());
    }
    let Some(set) = sets.iter().find(|set| annotations::revision(set) == wanted) else {
        return Rollback::refused(messages::ROLLBACK_REVISION_NOT_FOUND, messages::NO_SUCH_REVISION.to_owned());
    };
    let name = deployment.name_any();
    let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    if template.is_none_or(|template| same_but_for_hash(&spec.template, template)) {
        return Rollback::refused(messages::ROLLBACK_TEMPLATE_UNCHANGED, messages::template_unchanged(&name));
    }
    Rollback {
        to: Some(Arc::clone(set)),
        severity: Severity::Normal,
        reason: messages::ROLLBACK_DONE,
        text: messages::rolled_back(&name, wanted),
    }
}

/// The highest revision but one. Upstream's `LastRevision`.
fn last_revision(sets: &[&Arc<ReplicaSet>]) -> i64 {
    let (mut first, mut second) = (0, 0);
    for revision in sets.iter().map(|set| annotations::revision(set)) {
        if revision >= first {
            (first, second) = (revision, first);
        } else {
            second = second.max(revision);
        }
    }
    second
}

/// Changes the Deployment: its next ReplicaSet is the old one again, with the annotations of that time.
pub(super) fn apply(rollback: &Rollback, deployment: &mut Deployment) {
    if let (Some(set), Some(spec)) = (&rollback.to, &mut deployment.spec)
        && let Some(template) = set.spec.as_ref().and_then(|spec| spec.template.clone())
    {
        spec.template = template;
        if let Some(labels) = spec.template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
            labels.remove(HASH_LABEL);
        }
        let kept = deployment.metadata.annotations.get_or_insert_default();
        kept.retain(|name, _| !annotations::is_copied(name));
        let of_set = set.metadata.annotations.iter().flatten().filter(|(name, _)| annotations::is_copied(name));
        kept.extend(of_set.map(|(name, value)| (name.clone(), value.clone())));
    }
    if let Some(annotations) = &mut deployment.metadata.annotations {
        annotations.remove(annotations::ROLLBACK_TO);
    }
}
