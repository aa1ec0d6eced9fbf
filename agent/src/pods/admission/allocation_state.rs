//! The file in a pod's directory that keeps its allocated resources across restarts of the agent: Docker does not know
//! memory requests, and the API only what the spec asks for. Upstream keeps `allocated_pods_state` for it.

use std::{io, path::Path};

use windlass_kit::{atomic_file, disk, json};

use crate::pods::lifecycle::allocated::Allocated;

/// The file's name in the pod's directory.
const FILE: &str = "allocated.json";

/// The allocated resources of a pod; `None` where there is no file, or none that can be read.
pub(crate) fn read(pod_dir: &Path) -> Option<Allocated> {
    let path = pod_dir.join(FILE);
    let unreadable = |error: &dyn std::fmt::Display| {
        tracing::warn!(path = %path.display(), %error, "failed to read allocated resources of a pod; using its containers' limits");
    };
    match disk::read(&path) {
        Ok(bytes) => json::from_slice(&bytes).inspect_err(|error| unreadable(error)).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            unreadable(&error);
            None
        }
    }
}

/// Writes the allocated resources of a pod.
///
/// # Errors
/// When the file cannot be written: nothing may be done that a restart would not know of.
pub(crate) fn write(pod_dir: &Path, allocated: &Allocated) -> Result<(), String> {
    let path = pod_dir.join(FILE);
    let written = disk::make_dir_unsynced(pod_dir, 0o755)
        .and_then(|()| atomic_file::write(&path, &serde_json::to_vec(allocated).map_err(io::Error::other)?, 0o600));
    written.map_err(|error| format!("failed to write its allocated resources to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, PodSpec};

    use windlass_fixtures::pods::with_resources;
    use windlass_model_disk::{Case, Lasts};

    use super::*;

    fn spec(request: &str) -> PodSpec {
        with_resources(&[&format!(r#"{{"requests":{{"memory":"{request}"}},"limits":{{"memory":"1Gi"}}}}"#)])
    }

    /// Allocations are written before Docker is called, so a torn file would lose their record.
    #[test]
    fn each_call_of_a_write_may_fail() {
        let allocated = |memory| Allocated::of(&spec(memory));
        let pairs = Case {
            what: "allocated resources",
            prepare: &|dir| write(&dir.join("pods/u"), &allocated("64Mi")).unwrap(),
            act: &|dir| write(&dir.join("pods/u"), &allocated("128Mi")),
            judge: &|dir, done, what| {
                let found = read(&dir.join("pods/u"));
                let is_new = found == Some(allocated("128Mi"));
                assert!(is_new || (!done && found == Some(allocated("64Mi"))), "{what}: {found:?}");
            },
            lasts: Lasts::Process,
            says: &["failed to write its allocated resources to", "allocated.json"],
        }
        .run();
        println!("allocated resources: {pairs} pairs");
        assert!(pairs > 20, "{pairs}");
    }

    #[test]
    fn allocated_resources_survive_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let pod_dir = dir.path().join("u");
        assert_eq!(read(&pod_dir), None);
        let allocated = Allocated::of(&spec("64Mi"));
        write(&pod_dir, &allocated).unwrap();
        assert_eq!(read(&pod_dir).as_ref(), Some(&allocated));
        assert!(!allocated.differs(&spec("64Mi")) && !allocated.differs(&spec("65536Ki")), "it is the same amount");
        assert!(allocated.differs(&spec("65Mi")));
        let resized = Pod { spec: Some(spec("65Mi")), ..Pod::default() };
        assert_eq!(allocated.applied_to(&resized).spec, Some(spec("64Mi")));
        std::fs::write(pod_dir.join(FILE), "{").unwrap();
        assert_eq!(read(&pod_dir), None);
    }
}
