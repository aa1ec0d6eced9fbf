//! The annotations that a Deployment keeps on its ReplicaSets. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::{Resource, ResourceExt as _};

use super::strategy::Limits;

/// The number of the rollout, on the Deployment and on its ReplicaSets.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Numbers that a ReplicaSet had before it became the newest once more.
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas when the ReplicaSet was last scaled.
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with the surge.
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Asks for the template of an earlier revision.
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Annotations of a Deployment that its ReplicaSets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    ROLLBACK_TO,
];

/// The most characters of the history of revisions.
const HISTORY_CHARACTERS: usize = 2000;

/// Whether ReplicaSets get this annotation of their Deployment.
pub(super) fn is_copied(name: &str) -> bool {
    !NOT_COPIED.contains(&name)
}

pub(super) fn get<'a>(object: &'a impl Resource, name: &str) -> Option<&'a str> {
    object.meta().annotations.as_ref()?.get(name).map(String::as_str)
}

/// The revision of a ReplicaSet; 0 for none.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    get(set, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn desired_replicas(set: &ReplicaSet) -> Option<i32> {
    get(set, DESIRED_REPLICAS)?.parse().ok()
}

pub(super) fn max_replicas(set: &ReplicaSet) -> Option<i32> {
    get(set, MAX_REPLICAS)?.parse().ok()
}

/// The annotations that say for which size of the Deployment a ReplicaSet is scaled, as far as `set` has others.
pub(super) fn for_size(set: &ReplicaSet, limits: Limits) -> BTreeMap<String, String> {
    let wanted = [(DESIRED_REPLICAS, limits.replicas.to_string()), (MAX_REPLICAS, limits.most().to_string())];
    let changed = wanted.into_iter().filter(|(name, value)| get(set, name) != Some(value.as_str()));
    changed.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The annotations that make `set` the newest with `newest` as its revision, as far as it has others. A revision that
/// is higher already stays: older ReplicaSets may have been deleted meanwhile.
pub(super) fn for_newest(deployment: &Deployment, set: &ReplicaSet, newest: i64) -> BTreeMap<String, String> {
    let copied = deployment.annotations().iter().filter(|(name, _)| is_copied(name));
    let mut changed: BTreeMap<String, String> = copied
        .filter(|(name, value)| get(set, name) != Some(value.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let old = get(set, REVISION).filter(|text| !text.is_empty());
    let number = old.map_or(Some(0), |text| text.parse::<i64>().ok());
    if number.is_some_and(|number| number < newest) {
        changed.insert(REVISION.to_owned(), newest.to_string());
        if let Some(old) = old
            && let Some(history) = extended(get(set, REVISION_HISTORY).unwrap_or_default(), old)
        {
            changed.insert(REVISION_HISTORY.to_owned(), history);
        }
    }
    changed
}

/// The history with one revision more, without its oldest ones when it is too long.
fn extended(history: &str, revision: &str) -> Option<String> {
    let mut revisions: Vec<&str> = history.split(',').filter(|text| !text.is_empty()).collect();
    revisions.push(revision);
    let mut length = revisions.iter().map(|text| text.len() + 1).sum::<usize>() - 1;
    let mut first = 0;
    while length > HISTORY_CHARACTERS && first + 1 < revisions.len() {
        length -= revisions[first].len() + 1;
        first += 1;
    }
    (length <= HISTORY_CHARACTERS).then(|| revisions[first..].join(","))
}
