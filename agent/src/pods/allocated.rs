//! What the node has allocated to the containers of a pod: what its spec said when the pod was taken in, or when a resize
//! was last granted. A file of the pod's folder keeps it, since Docker knows no requests of memory and the API tells only
//! what is wished for.

use std::{collections::BTreeMap, io, path::Path};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use serde::{Deserialize, Serialize};
use windlass_kit::{json, objects::resources::amount};

use super::spec;
use crate::scratch;

/// The record's name in the pod's folder.
const FILE: &str = "allocated.json";
/// What can be changed while a pod runs.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// By container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Allocated(BTreeMap<String, ResourceRequirements>);

impl Allocated {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        let one = |container: &Container| (container.name.clone(), container.resources.clone().unwrap_or_default());
        Self(spec::all_containers(spec).map(|(container, _)| one(container)).collect())
    }

    /// The resources of a container; those of its spec where nothing else was allocated.
    pub(crate) fn resources<'a>(&'a self, container: &'a Container) -> Option<&'a ResourceRequirements> {
        self.0.get(&container.name).or(container.resources.as_ref())
    }

    /// Whether a spec says something else.
    pub(crate) fn differs(&self, spec: &PodSpec) -> bool {
        spec::all_containers(spec).any(|(container, _)| {
            let (has, wanted) = (self.resources(container), container.resources.as_ref());
            let requests = |r: Option<&ResourceRequirements>, name| amount(r?.requests.as_ref(), name);
            let limits = |r: Option<&ResourceRequirements>, name| amount(r?.limits.as_ref(), name);
            RESOURCES
                .into_iter()
                .any(|name| requests(has, name) != requests(wanted, name) || limits(has, name) != limits(wanted, name))
        })
    }

    /// The pod with what its containers have instead of what its spec wishes for.
    pub(crate) fn applied_to(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let Some(spec) = &mut pod.spec else { return pod };
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(has) = self.0.get(&container.name) {
                let nothing = *has == ResourceRequirements::default();
                container.resources = (!nothing).then(|| has.clone());
            }
        }
        pod
    }

    /// The record in a pod's folder; `None` where there is none that can be read.
    pub(crate) fn read(pod_dir: &Path) -> Option<Self> {
        let path = pod_dir.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => json::from_slice(&bytes)
                .inspect_err(|error| {
                    tracing::warn!(path = %path.display(), %error, "what was allocated to a pod could not be read; what Docker holds it to counts");
                })
                .ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "what was allocated to a pod could not be read; what Docker holds it to counts");
                None
            }
        }
    }

    /// Keeps the record in a pod's folder.
    pub(crate) fn keep(&self, pod_dir: &Path) {
        let path = pod_dir.join(FILE);
        let kept = std::fs::create_dir_all(pod_dir)
            .and_then(|()| scratch::write(&path, &serde_json::to_vec(self).map_err(io::Error::other)?));
        if let Err(error) = kept {
            tracing::warn!(path = %path.display(), %error, "what is allocated to a pod could not be recorded; after a restart of the agent a resize may be judged again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(request: &str) -> PodSpec {
        let text = format!(
            r#"{{"containers":[{{"name":"c","resources":{{"requests":{{"memory":"{request}"}},"limits":{{"memory":"1Gi"}}}}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_record_outlives_the_agent_and_shows_what_is_wished_for() {
        let dir = tempfile::tempdir().unwrap();
        let pod_dir = dir.path().join("u");
        assert_eq!(Allocated::read(&pod_dir), None);
        let allocated = Allocated::of(&spec("64Mi"));
        allocated.keep(&pod_dir);
        assert_eq!(Allocated::read(&pod_dir).as_ref(), Some(&allocated));
        assert!(!allocated.differs(&spec("64Mi")) && !allocated.differs(&spec("65536Ki")), "it is the same amount");
        assert!(allocated.differs(&spec("65Mi")));
        let wished = Pod { spec: Some(spec("65Mi")), ..Pod::default() };
        assert_eq!(allocated.applied_to(&wished).spec, Some(spec("64Mi")));
        std::fs::write(pod_dir.join(FILE), "{").unwrap();
        assert_eq!(Allocated::read(&pod_dir), None);
    }
}
