//! Which static pods start and which are deleted. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{FullName, full_name, manifest::manifest_hash};

/// What identifies a static pod that has a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StaticPodKey {
    pub(crate) name: FullName,
    /// The hash of its manifest.
    pub(crate) manifest: Option<String>,
}

impl StaticPodKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { name: full_name(pod), manifest: manifest_hash(pod).map(str::to_owned) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Start(String),
    Delete(String),
}

/// The changes after which `wanted` runs. Two pods of one name never run together: the next one waits until the one
/// before has terminated, and so does one with the same uid and another manifest.
pub(crate) fn changes(wanted: &BTreeMap<String, Arc<Pod>>, running: &BTreeMap<String, StaticPodKey>) -> Vec<Change> {
    let stays =
        |uid: &String, worker: &StaticPodKey| wanted.get(uid).is_some_and(|pod| StaticPodKey::of(pod) == *worker);
    let ends = running.iter().filter(|(uid, worker)| !stays(uid, worker)).map(|(uid, _)| Change::Delete(uid.clone()));
    let free = |pod: &Pod| running.values().all(|worker| worker.name != full_name(pod));
    let starts = wanted
        .iter()
        .filter(|(uid, pod)| !running.contains_key(*uid) && free(pod))
        .map(|(uid, _)| Change::Start(uid.clone()));
    ends.chain(starts).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn pods(all: &[(&str, &str)]) -> BTreeMap<String, Arc<Pod>> {
        let one = |(meta, image): &(&str, &str)| {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{{meta}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
            );
            let pod = super::super::manifest::pods(Path::new("a.yaml"), &text, "n").pods.remove(0);
            (pod.metadata.uid.clone().unwrap(), Arc::new(pod))
        };
        all.iter().map(one).collect()
    }

    fn running(pods: &BTreeMap<String, Arc<Pod>>) -> BTreeMap<String, StaticPodKey> {
        pods.iter().map(|(uid, pod)| (uid.clone(), StaticPodKey::of(pod))).collect()
    }

    #[test]
    fn start_keep_replace_delete() {
        let one = pods(&[("name: a", "x")]);
        let uid = one.keys().next().unwrap().clone();
        assert_eq!(changes(&one, &BTreeMap::new()), [Change::Start(uid.clone())]);
        assert_eq!(changes(&one, &running(&one)), []);
        assert_eq!(changes(&BTreeMap::new(), &running(&one)), [Change::Delete(uid.clone())]);
        // Edited: the old one is deleted first, alone.
        let edited = pods(&[("name: a", "z")]);
        assert_eq!(changes(&edited, &running(&one)), [Change::Delete(uid)]);
        assert_eq!(changes(&edited, &BTreeMap::new()).len(), 1);
        // The same uid with another manifest.
        let (old, new) = (pods(&[("name: a, uid: u", "x")]), pods(&[("name: a, uid: u", "z")]));
        assert_eq!(changes(&new, &running(&old)), [Change::Delete("u".into())]);
    }
}
