//! Pods of the node's own folder: run whatever the API says, and shown there by an image of each.
//!
//! `read` makes pods of manifests and `decide` says which begin and which end; both are pure. `mirrors` keeps the images
//! in the API; this module follows the folder. Imports nothing of `engine`.

mod decide;
pub(super) mod mirrors;
mod read;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::manifests::{Folder, Scanned};

pub(super) use decide::{Change, Running, changes};

use super::spec;

/// Static pods by uid; `None` before the folder was read once.
pub(super) type StaticPods = Option<Arc<BTreeMap<String, Arc<Pod>>>>;
/// Namespace and name: what tells pods apart for people.
pub(super) type FullName = (String, String);

/// The folder is read anew this often even when nothing tells of a change; upstream's.
const RESCAN: Duration = Duration::from_secs(20);

pub(super) fn full_name(pod: &Pod) -> FullName {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

/// Follows the folder, if there is one, until `shutdown`.
pub(super) async fn follow(
    dir: Option<PathBuf>,
    node: String,
    tell: watch::Sender<StaticPods>,
    shutdown: CancellationToken,
) {
    let Some(dir) = dir else {
        tell.send_replace(Some(Arc::default()));
        return shutdown.cancelled().await;
    };
    let mut folder = Folder::new(dir);
    let mut files = Files { node, by_path: BTreeMap::new(), told: BTreeSet::new() };
    loop {
        let scanned = tokio::select! {
            () = shutdown.cancelled() => return,
            scanned = folder.scan() => scanned,
        };
        // A folder that cannot be read says nothing of its pods: they go on.
        if let Some(scanned) = scanned {
            let pods = files.take(scanned);
            tell.send_if_modified(|known| {
                let same =
                    known.as_deref().is_some_and(|old| old.keys().eq(pods.keys()) && !files.has_changed(old, &pods));
                if !same {
                    *known = Some(Arc::new(pods));
                }
                !same
            });
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = folder.changed(Instant::now() + RESCAN) => {}
        }
    }
}

/// What is remembered of the folder's files.
struct Files {
    node: String,
    /// The pods that each file last held when it could be read.
    by_path: BTreeMap<PathBuf, Vec<Arc<Pod>>>,
    /// Complaints that were told already.
    told: BTreeSet<String>,
}

impl Files {
    /// The pods of all files, by uid. A file that cannot be read keeps what it held: its writer may be at it.
    fn take(&mut self, scanned: Scanned) -> BTreeMap<String, Arc<Pod>> {
        self.by_path.retain(|path, _| scanned.contains_key(path));
        let mut complaints = Vec::new();
        for (path, text) in scanned {
            let known = self.by_path.get(&path).cloned().unwrap_or_default();
            let held = match text {
                Ok(text) => {
                    let read = read::pods(&path, &text, &self.node);
                    complaints.extend(read.problems.iter().map(|p| format!("{}: {p}", path.display())));
                    // As a whole: a file that is half written must not end the pods of its other half.
                    if read.problems.is_empty() { read.pods.into_iter().map(Arc::new).collect() } else { known }
                }
                Err(reason) => {
                    complaints.push(format!("{}: {reason}", path.display()));
                    known
                }
            };
            self.by_path.insert(path, held);
        }
        let (mut pods, mut names) = (BTreeMap::new(), BTreeMap::<FullName, PathBuf>::new());
        for (path, held) in &self.by_path {
            for pod in held {
                let taken = names.get(&full_name(pod)).cloned();
                if let Some(first) = taken.or_else(|| pods.contains_key(spec::uid(pod)).then(|| path.clone())) {
                    let (namespace, name) = full_name(pod);
                    complaints.push(format!(
                        "{}: pod {namespace}/{name} is defined in {} already; this one is left out",
                        path.display(),
                        first.display()
                    ));
                    continue;
                }
                names.insert(full_name(pod), path.clone());
                pods.insert(spec::uid(pod).to_owned(), Arc::clone(pod));
            }
        }
        for complaint in complaints.iter().filter(|c| !self.told.contains(*c)) {
            tracing::error!("{complaint}; what the file held before goes on, and the other files are followed");
        }
        self.told = complaints.into_iter().collect();
        pods
    }

    fn has_changed(&self, old: &BTreeMap<String, Arc<Pod>>, new: &BTreeMap<String, Arc<Pod>>) -> bool {
        new.iter().any(|(uid, pod)| old.get(uid).is_none_or(|o| read::content(o) != read::content(pod)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files { node: "n".into(), by_path: BTreeMap::new(), told: BTreeSet::new() }
    }

    fn pod(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn scanned(all: &[(&str, String)]) -> Scanned {
        all.iter().map(|(path, text)| (PathBuf::from(path), Ok(text.clone()))).collect()
    }

    fn names(pods: &BTreeMap<String, Arc<Pod>>) -> Vec<String> {
        let mut all: Vec<String> = pods.values().map(|p| spec::name(p).to_owned()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_broken_file_keeps_what_it_held() {
        let mut files = files();
        let first = files.take(scanned(&[("a.yaml", pod("a", "x")), ("b.yaml", pod("b", "x"))]));
        assert_eq!(names(&first), ["a-n", "b-n"]);
        let half = pod("a", "x").split_at(40).0.to_owned();
        let broken = files.take(scanned(&[("a.yaml", half), ("b.yaml", pod("b", "z"))]));
        assert_eq!(names(&broken), ["a-n", "b-n"]);
        assert!(files.has_changed(&first, &broken), "b has another image");
        let gone = files.take(scanned(&[("b.yaml", pod("b", "z"))]));
        assert_eq!(names(&gone), ["b-n"]);
    }

    #[test]
    fn the_first_file_has_a_name() {
        let mut files = files();
        let pods = files.take(scanned(&[("a.yaml", pod("a", "x")), ("b.yaml", pod("a", "z"))]));
        assert_eq!(pods.len(), 1);
        assert_eq!(pods.values().next().unwrap().spec.as_ref().unwrap().containers[0].image.as_deref(), Some("x"));
        assert!(files.told.iter().next().unwrap().contains("is defined in a.yaml already"), "{:?}", files.told);
    }
}
