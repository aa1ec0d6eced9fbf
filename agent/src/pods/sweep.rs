//! Logs of pods that are gone: folders of unknown pods, and links that lead nowhere.

use std::{collections::BTreeSet, fs, path::Path};

/// Whether a folder of logs, `namespace_name_uid`, is of a pod that is not among `known`.
fn is_unknown(folder: &str, known: &BTreeSet<String>) -> bool {
    let parts: Vec<&str> = folder.split('_').collect();
    matches!(parts[..], [namespace, name, uid] if !namespace.is_empty() && !name.is_empty() && !known.contains(uid))
}

/// Removes the folders of logs of pods that are not known, and links to logs that are gone. What cannot be removed is
/// left for the next time.
pub(crate) fn sweep(pod_logs: &Path, container_logs: &Path, known: &BTreeSet<String>) {
    for entry in fs::read_dir(pod_logs).into_iter().flatten().flatten() {
        if is_unknown(&entry.file_name().to_string_lossy(), known) {
            tracing::debug!(folder = %entry.path().display(), "logs of a pod that is gone are removed");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    for entry in fs::read_dir(container_logs).into_iter().flatten().flatten() {
        let is_link = entry.file_type().is_ok_and(|t| t.is_symlink());
        let leads_nowhere = fs::metadata(entry.path()).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        if is_link && leads_nowhere {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_is_of_no_pod_goes() {
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
        sweep(&pods, &containers, &["known".to_owned()].into());
        let names = |dir: &Path| -> BTreeSet<String> {
            fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&pods), ["a_b_c_d", "n_p_known", "somebody-elses"].map(str::to_owned).into());
        assert_eq!(names(&containers), ["file.log", "kept.log"].map(str::to_owned).into());
    }
}
