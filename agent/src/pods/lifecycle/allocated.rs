//! The resources that the node has allocated to the containers of a pod: those of its spec when the pod was admitted,
//! or when a resize was last granted. The API shows only what the spec asks for. Pure; `admission::allocation_state`
//! keeps them on disk.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use serde::{Deserialize, Serialize};
use windlass_kit::objects::resources::amount;

use super::spec;

/// The resources that can be changed while a pod runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The key of the resources of the pod as a whole: no container has such a name. Absent in the files of versions that
/// did not resize them.
const POD: &str = "";

/// Resources by container name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Allocated(BTreeMap<String, ResourceRequirements>);

impl Allocated {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        let one = |container: &Container| (container.name.clone(), container.resources.clone().unwrap_or_default());
        let whole = (POD.to_owned(), spec.resources.clone().unwrap_or_default());
        Self(spec::all_containers(spec).map(|(container, _)| one(container)).chain([whole]).collect())
    }

    /// The resources of a container; those of its spec where none are recorded.
    pub(crate) fn resources<'a>(&'a self, container: &'a Container) -> Option<&'a ResourceRequirements> {
        self.0.get(&container.name).or(container.resources.as_ref())
    }

    /// Whether a spec asks for other resources.
    pub(crate) fn differs(&self, spec: &PodSpec) -> bool {
        let whole = spec.resources.as_ref();
        let containers = spec::all_containers(spec).map(|(c, _)| (self.resources(c), c.resources.as_ref()));
        let mut all = containers.chain([(self.0.get(POD).or(whole), whole)]);
        all.any(|(allocated, wanted)| {
            let requests = |r: Option<&ResourceRequirements>, name| amount(r?.requests.as_ref(), name);
            let limits = |r: Option<&ResourceRequirements>, name| amount(r?.limits.as_ref(), name);
            RESIZABLE.into_iter().any(|name| {
                requests(allocated, name) != requests(wanted, name) || limits(allocated, name) != limits(wanted, name)
            })
        })
    }

    /// The pod with the allocated resources instead of those that its spec asks for.
    pub(crate) fn applied_to(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let Some(spec) = &mut pod.spec else { return pod };
        let some = |allocated: &ResourceRequirements| {
            Some(allocated).filter(|allocated| **allocated != ResourceRequirements::default()).cloned()
        };
        if let Some(whole) = self.0.get(POD) {
            spec.resources = some(whole);
        }
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(allocated) = self.0.get(&container.name) {
                container.resources = some(allocated);
            }
        }
        pod
    }
}
