//! What a revision holds, which one an owner's template is, and which ones are no longer kept. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{
    pod_control::{Namespaced, owner_reference},
    template_hash::safe_hash,
};

/// Owners' names are cut at this length in the names of their revisions.
const OWNER_NAME_LENGTH: usize = 223;

/// The patch that gives an owner this template and leaves the rest as it is.
pub(crate) fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template that a revision holds; `None` if it holds none.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// Whether a revision is of this template; as types, so that what was stored by another version is still the same.
pub(crate) fn is_of(revision: &ControllerRevision, wanted: &PodTemplateSpec) -> bool {
    template(revision).as_ref() == Some(wanted)
}

/// FNV-1a of the data and of the number of collisions.
pub(crate) fn hash(data: &Value, collisions: Option<i32>) -> String {
    let mut text = data.to_string();
    if let Some(collisions) = collisions {
        text.push_str(&collisions.to_string());
    }
    safe_hash(text.as_bytes())
}

/// The name of a revision.
pub(crate) fn name(owner: &str, hash: &str) -> String {
    let owner: String = owner.chars().take(OWNER_NAME_LENGTH).collect();
    format!("{owner}-{hash}")
}

/// A revision of the template with this number; `label` is the key of its hash label.
pub(crate) fn new_revision<O: Namespaced>(
    owner: &O,
    template: &PodTemplateSpec,
    number: i64,
    label: &str,
    collisions: Option<i32>,
) -> ControllerRevision {
    let data = data(template);
    let hash = hash(&data, collisions);
    let mut labels: BTreeMap<String, String> =
        template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(label.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(&owner.name_any(), &hash)),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// Orders revisions by number, then by age and name.
pub(crate) fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    let created = |r: &ControllerRevision| r.metadata.creation_timestamp.as_ref().map(|time| time.0);
    revisions.sort_by(|a, b| {
        let (one, other) = ((a.revision, created(a)), (b.revision, created(b)));
        one.cmp(&other).then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
}

/// What makes a template the newest of the history.
#[derive(Debug)]
pub(crate) enum Choice {
    /// It is already.
    Newest(Arc<ControllerRevision>),
    /// An older revision holds it: that one gets this number.
    Renumber(Arc<ControllerRevision>, i64),
    /// None holds it: a new one with this number.
    Create(i64),
}

/// Chooses among sorted revisions.
pub(crate) fn choose(sorted: &[Arc<ControllerRevision>], template: &PodTemplateSpec) -> Choice {
    let Some(newest) = sorted.last() else { return Choice::Create(1) };
    let next = newest.revision.saturating_add(1);
    match sorted.iter().rev().find(|revision| is_of(revision, template)) {
        Some(found) if Arc::ptr_eq(found, newest) => Choice::Newest(Arc::clone(found)),
        Some(found) => Choice::Renumber(Arc::clone(found), next),
        None => Choice::Create(next),
    }
}

/// The oldest of the sorted revisions that are not live, but for `limit` of them.
pub(crate) fn surplus(
    sorted: &[Arc<ControllerRevision>],
    is_live: impl Fn(&ControllerRevision) -> bool,
    limit: usize,
) -> Vec<Arc<ControllerRevision>> {
    let mut dead: Vec<_> = sorted.iter().filter(|revision| !is_live(revision)).cloned().collect();
    dead.truncate(dead.len().saturating_sub(limit));
    dead
}
