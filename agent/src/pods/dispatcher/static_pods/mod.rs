//! Static pods: run from manifests in a directory of the node whatever the API says, and shown there by mirror pods.
//!
//! `manifest` reads pods and `diff` says which start and which are deleted; both are pure. `mirror_pods` writes to the
//! API; this module watches the directory. Imports nothing of `engine`.

pub(super) mod diff;
mod manifest;
pub(super) mod mirror_pods;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    manifests::{ManifestDir, Scanned},
    repairs::Repair,
};

pub(super) use diff::StaticPodKey;

use crate::pods::lifecycle::spec;

/// Static pods by uid; `None` before the directory was read once.
pub(super) type StaticPods = Option<Arc<BTreeMap<String, Arc<Pod>>>>;
/// Namespace and name.
pub(super) type FullName = (String, String);

/// The directory is read this often even without a notification; upstream's `fileCheckFrequency`.
const RESCAN_INTERVAL: Duration = Duration::from_secs(20);

pub(super) fn full_name(pod: &Pod) -> FullName {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

/// Watches the directory of static pods, if one is configured, until `shutdown`.
pub(super) async fn run(
    dir: Option<PathBuf>,
    node: String,
    tx: watch::Sender<StaticPods>,
    shutdown: CancellationToken,
) {
    let Some(dir) = dir else {
        tx.send_replace(Some(Arc::default()));
        return shutdown.cancelled().await;
    };
    let mut dir = ManifestDir::new(dir);
    let mut files = Manifests { node, by_path: BTreeMap::new(), reported: BTreeSet::new() };
    loop {
        let scanned = tokio::select! {
            () = shutdown.cancelled() => return,
            scanned = dir.scan() => scanned,
        };
        // While the directory cannot be read its pods keep running.
        if let Some(scanned) = scanned {
            let pods = files.read(scanned);
            tx.send_if_modified(|known| {
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
            () = dir.changed(Instant::now() + Repair::StaticPodRescan.period(RESCAN_INTERVAL)) => {}
        }
    }
}

/// The manifests of the directory.
struct Manifests {
    node: String,
    /// The pods of each file, as of when it could last be read.
    by_path: BTreeMap<PathBuf, Vec<Arc<Pod>>>,
    /// Problems that were logged already.
    reported: BTreeSet<String>,
}

impl Manifests {
    /// The pods of all files, by uid. A file that cannot be read keeps its pods: it may be being written.
    fn read(&mut self, scanned: Scanned) -> BTreeMap<String, Arc<Pod>> {
        self.by_path.retain(|path, _| scanned.contains_key(path));
        let mut problems = Vec::new();
        for (path, text) in scanned {
            let known = self.by_path.get(&path).cloned().unwrap_or_default();
            let pods = match text {
                Ok(text) => {
                    let read = manifest::pods(&path, &text, &self.node);
                    problems.extend(read.problems.iter().map(|p| format!("{}: {p}", path.display())));
                    // As a whole: a file that is half written must not delete the pods of its other half.
                    if read.problems.is_empty() { read.pods.into_iter().map(Arc::new).collect() } else { known }
                }
                Err(reason) => {
                    problems.push(format!("{}: {reason}", path.display()));
                    known
                }
            };
            self.by_path.insert(path, pods);
        }
        let (mut pods, mut names) = (BTreeMap::new(), BTreeMap::<FullName, PathBuf>::new());
        for (path, of_file) in &self.by_path {
            for pod in of_file {
                let taken = names.get(&full_name(pod)).cloned();
                if let Some(first) = taken.or_else(|| pods.contains_key(spec::uid(pod)).then(|| path.clone())) {
                    let (namespace, name) = full_name(pod);
                    problems.push(format!(
                        "{}: pod {namespace}/{name} is defined in {} already; this one is ignored",
                        path.display(),
                        first.display()
                    ));
                    continue;
                }
                names.insert(full_name(pod), path.clone());
                pods.insert(spec::uid(pod).to_owned(), Arc::clone(pod));
            }
        }
        for problem in problems.iter().filter(|p| !self.reported.contains(*p)) {
            tracing::error!(problem, "invalid static pod manifest; its earlier pods keep running");
        }
        self.reported = problems.into_iter().collect();
        pods
    }

    fn has_changed(&self, old: &BTreeMap<String, Arc<Pod>>, new: &BTreeMap<String, Arc<Pod>>) -> bool {
        new.iter()
            .any(|(uid, pod)| old.get(uid).is_none_or(|o| manifest::manifest_hash(o) != manifest::manifest_hash(pod)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Manifests {
        Manifests { node: "n".into(), by_path: BTreeMap::new(), reported: BTreeSet::new() }
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
    fn a_broken_file_keeps_its_pods() {
        let mut files = files();
        let first = files.read(scanned(&[("a.yaml", pod("a", "x")), ("b.yaml", pod("b", "x"))]));
        assert_eq!(names(&first), ["a-n", "b-n"]);
        let half = pod("a", "x").split_at(40).0.to_owned();
        let broken = files.read(scanned(&[("a.yaml", half), ("b.yaml", pod("b", "z"))]));
        assert_eq!(names(&broken), ["a-n", "b-n"]);
        assert!(files.has_changed(&first, &broken), "b has another image");
        let gone = files.read(scanned(&[("b.yaml", pod("b", "z"))]));
        assert_eq!(names(&gone), ["b-n"]);
    }

    #[test]
    fn the_first_file_has_a_name() {
        let mut files = files();
        let pods = files.read(scanned(&[("a.yaml", pod("a", "x")), ("b.yaml", pod("a", "z"))]));
        assert_eq!(pods.len(), 1);
        assert_eq!(pods.values().next().unwrap().spec.as_ref().unwrap().containers[0].image.as_deref(), Some("x"));
        assert!(files.reported.iter().next().unwrap().contains("is defined in a.yaml already"), "{:?}", files.reported);
    }
}
