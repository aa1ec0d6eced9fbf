//! Files that change the configuration file: what distributions and tools add besides a file that is the operator's. By
//! the rules of kubelet's `--config-dir`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

/// The ending of these files; others are skipped.
const EXTENSION: &str = "conf";

/// The files of a directory and of those below it, in the order of their names.
///
/// # Errors
/// When a directory cannot be read.
pub(super) fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("the directory of configuration files {} could not be read", dir.display());
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(failed)? {
        entries.push(entry.with_context(failed)?.path());
    }
    entries.sort();
    let mut all = Vec::new();
    for path in entries {
        // Not through links: as upstream's walk.
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            all.extend(files(&path)?);
        } else if path.extension().is_some_and(|e| e == EXTENSION) {
            all.push(path);
        }
    }
    Ok(all)
}

/// The texts of files, of which each changes those before it.
///
/// # Errors
/// When one cannot be parsed.
pub(super) fn merged(files: &[String]) -> anyhow::Result<Value> {
    let mut merged = Value::Object(serde_json::Map::new());
    for text in files {
        let value: Option<Value> = serde_saphyr::from_str(text)?;
        // A file of comments only.
        if let Some(value) = value.filter(|value| !value.is_null()) {
            merge(&mut merged, value);
        }
    }
    Ok(merged)
}

/// A JSON merge patch (RFC 7386): maps are merged, what is null is as if it had not been set, and all else is replaced.
fn merge(to: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *to = patch;
        return;
    };
    if !to.is_object() {
        *to = Value::Object(serde_json::Map::new());
    }
    let Value::Object(to) = to else { return };
    for (name, value) in patch {
        if value.is_null() {
            to.remove(&name);
        } else {
            merge(to.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, file};

    const HEAD: &str = "apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\n";

    fn settings(files: &[(&str, &str)]) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{HEAD}{text}")).unwrap();
        }
        let (base, changes) = (dir.path().join("base.yaml"), dir.path().join("d"));
        let read = file::read(Some(&base), Some(&changes)).map_err(|e| format!("{e:#}"))?;
        let mut settings = Settings::example();
        read.unwrap().apply(&mut settings);
        Ok(settings)
    }

    #[test]
    fn files_change_what_was_before_in_the_order_of_their_names() {
        let base = "maxPods: 50\nkubeReserved: {cpu: 100m, memory: 1Gi}\nclusterDNS: [10.0.0.1, 10.0.0.2]\nevictionMaxPodGracePeriod: 7\n";
        let settings = settings(&[
            ("base.yaml", base),
            ("d/20-b.conf", "maxPods: 70\n"),
            ("d/10-a.conf", "maxPods: 60\nkubeReserved: {cpu: 200m}\nclusterDNS: [10.0.0.3]\n"),
            ("d/10-x/y.conf", "evictionMaxPodGracePeriod: null\n"),
            ("d/30-note.yaml", "maxPods: 80\n"),
            ("d/40-empty.conf", ""),
        ])
        .unwrap();
        assert_eq!(settings.max_pods, 70);
        let reserved = &settings.kubelet.kube_reserved;
        assert_eq!((reserved["cpu"].as_str(), reserved["memory"].as_str()), ("200m", "1Gi"), "maps are merged");
        assert_eq!(settings.cluster_dns.len(), 1, "lists are replaced");
        assert_eq!(settings.kubelet.eviction_max_pod_grace_period, 0, "null is the default");
    }

    #[test]
    fn a_file_that_is_wrong_is_named() {
        let error = settings(&[("base.yaml", ""), ("d/10-a.conf", "maxPod: 1\n")]).unwrap_err();
        assert!(error.contains("10-a.conf") && error.contains("maxPod"), "{error}");
        let error = settings(&[("base.yaml", "")]).unwrap_err();
        assert!(error.contains("directory of configuration files"), "{error}");
    }
}
