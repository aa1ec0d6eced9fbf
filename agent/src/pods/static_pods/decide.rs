//! Which static pods begin and which end. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{FullName, full_name, read::content};

/// A static pod that has a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) name: FullName,
    /// What stands for its manifest.
    pub(crate) content: Option<String>,
}

impl Running {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { name: full_name(pod), content: content(pod).map(str::to_owned) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Start(String),
    End(String),
}

/// What must happen so that `wanted` runs. Two pods of one name never run together: the next one waits until the one
/// before is gone, and so does one with the same uid and another content.
pub(crate) fn changes(wanted: &BTreeMap<String, Arc<Pod>>, running: &BTreeMap<String, Running>) -> Vec<Change> {
    let stays = |uid: &String, worker: &Running| wanted.get(uid).is_some_and(|pod| Running::of(pod) == *worker);
    let ends = running.iter().filter(|(uid, worker)| !stays(uid, worker)).map(|(uid, _)| Change::End(uid.clone()));
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
            let pod = super::super::read::pods(Path::new("a.yaml"), &text, "n").pods.remove(0);
            (pod.metadata.uid.clone().unwrap(), Arc::new(pod))
        };
        all.iter().map(one).collect()
    }

    fn running(pods: &BTreeMap<String, Arc<Pod>>) -> BTreeMap<String, Running> {
        pods.iter().map(|(uid, pod)| (uid.clone(), Running::of(pod))).collect()
    }

    #[test]
    fn begin_stay_change_end() {
        let one = pods(&[("name: a", "x")]);
        let uid = one.keys().next().unwrap().clone();
        assert_eq!(changes(&one, &BTreeMap::new()), [Change::Start(uid.clone())]);
        assert_eq!(changes(&one, &running(&one)), []);
        assert_eq!(changes(&BTreeMap::new(), &running(&one)), [Change::End(uid.clone())]);
        // Edited: the old one ends first, alone.
        let edited = pods(&[("name: a", "z")]);
        assert_eq!(changes(&edited, &running(&one)), [Change::End(uid)]);
        assert_eq!(changes(&edited, &BTreeMap::new()).len(), 1);
        // The same uid with another content.
        let (old, new) = (pods(&[("name: a, uid: u", "x")]), pods(&[("name: a, uid: u", "z")]));
        assert_eq!(changes(&new, &running(&old)), [Change::End("u".into())]);
    }
}
