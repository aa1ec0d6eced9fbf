//! Removes logs of deleted pods: directories of unknown pods, and dangling links.

use std::{collections::BTreeSet, fs, path::Path};

/// Whether a log directory, `namespace_name_uid`, belongs to a pod that is not among `known`.
fn is_orphan(dir: &str, known: &BTreeSet<String>) -> bool {
    let parts: Vec<&str> = dir.split('_').collect();
    matches!(parts[..], [namespace, name, uid] if !namespace.is_empty() && !name.is_empty() && !known.contains(uid))
}

/// Removes the log directories of pods that are not `known`, and links to logs that do not exist. What cannot be
/// removed is left for the next time.
pub(super) fn remove(pod_logs: &Path, container_logs: &Path, known: &BTreeSet<String>) {
    for entry in fs::read_dir(pod_logs).into_iter().flatten().flatten() {
        if is_orphan(&entry.file_name().to_string_lossy(), known) {
            tracing::debug!(dir = %entry.path().display(), "removing logs of a deleted pod");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    for entry in fs::read_dir(container_logs).into_iter().flatten().flatten() {
        let is_link = entry.file_type().is_ok_and(|t| t.is_symlink());
        let is_dangling = fs::metadata(entry.path()).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        if is_link && is_dangling {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_logs_of_no_pod_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (pods, containers) = (dir.path().join("pods"), dir.path().join("containers"));
        for folder in ["n_p_known", "n_p_gone", "somebody-elses", "a_b_c_d"] {
            fs::create_dir_all(pods.join(folder).join("c")).unwrap();
        }
        fs::create_dir_all(&containers).unwrap();
        fs::write(pods.join("n_p_known/c/0.log"), "").unwrap();
        fs::write(containers.join("file.log"), "").unwrap();
        symlink(pods.join("n_p_known/c/0.log"), containers.join("kept.log")).unwrap();
        symlink(pods.join("n_p_gone/c/0.log"), containers.join("gone.log")).unwrap();
        remove(&pods, &containers, &["known".to_owned()].into());
        let names = |dir: &Path| -> BTreeSet<String> {
            fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&pods), ["a_b_c_d", "n_p_known", "somebody-elses"].map(str::to_owned).into());
        assert_eq!(names(&containers), ["file.log", "kept.log"].map(str::to_owned).into());
    }
}
