//! What a pod as a whole requests and what limits it, in exact quantities (upstream: `component-helpers/resource`). Pure.

use serde_json::Value;

use super::ResourceList;

/// Requests or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

impl Side {
    const fn field(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }

    /// The side of a `resources` field.
    pub fn of(self, resources: &Value) -> ResourceList {
        ResourceList::read(&resources[self.field()])
    }
}

/// What the spec says: the sum of the containers and sidecars, or the most demanding init container; what is stated for the
/// pod as a whole replaces that.
pub fn of_spec(pod: &Value, side: Side) -> ResourceList {
    let mut total = of_containers(&pod["spec"], |container| side.of(&container["resources"]));
    total.0.extend(of_whole(&pod["spec"]["resources"], side).0);
    total
}

/// What counts for a quota: what the spec says, or what a container still has while it is resized; with the overhead.
pub fn charged(pod: &Value, side: Side) -> ResourceList {
    let mut total = of_containers(&pod["spec"], |container| of_container(pod, container, side));
    let mut whole = of_whole(&pod["spec"]["resources"], side);
    if !whole.is_empty() {
        let held = &pod["status"]["resources"];
        whole.at_least(&side.of(held).only(|name| whole.0.contains_key(name)));
    }
    total.0.extend(whole.0);
    let mut overhead = ResourceList::read(&pod["spec"]["overhead"]);
    if side == Side::Limits {
        // What is not limited stays so.
        overhead = overhead.only(|name| total.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    total.add(&overhead);
    total
}

/// Whether the pod states resources for itself as a whole.
pub fn has_own(spec: &Value) -> bool {
    [Side::Requests, Side::Limits].into_iter().any(|side| !of_whole(&spec["resources"], side).is_empty())
}

fn of_whole(resources: &Value, side: Side) -> ResourceList {
    side.of(resources).only(|name| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-"))
}

/// Containers and sidecars run together; each init container runs with the sidecars before it.
fn of_containers(spec: &Value, of: impl Fn(&Value) -> ResourceList) -> ResourceList {
    let containers = |list: &str| spec[list].as_array().into_iter().flatten();
    let mut running = ResourceList::default();
    containers("containers").for_each(|container| running.add(&of(container)));
    let (mut sidecars, mut peak) = (ResourceList::default(), ResourceList::default());
    for init in containers("initContainers") {
        let mut own = of(init);
        if init["restartPolicy"] == "Always" {
            running.add(&own);
            sidecars.add(&own);
            peak.at_least(&sidecars);
        } else {
            own.add(&sidecars);
            peak.at_least(&own);
        }
    }
    running.at_least(&peak);
    running
}

/// What a container has and what it is to have: the greater of both, and only what it has where the node cannot give it more.
fn of_container(pod: &Value, container: &Value, side: Side) -> ResourceList {
    let wanted = side.of(&container["resources"]);
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let mut statuses = statuses.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    let status = statuses.find(|status| status["name"] == container["name"] && status["resources"].is_object());
    // An init container that ends is not resized.
    let Some(status) = status.filter(|_| is_resized(pod, container)) else { return wanted };
    let mut held = side.of(&status["resources"]);
    if side == Side::Requests {
        held.at_least(&ResourceList::read(&status["allocatedResources"]));
    }
    if !is_infeasible(pod) {
        held.at_least(&wanted);
    }
    held
}

fn is_resized(pod: &Value, container: &Value) -> bool {
    let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    container["restartPolicy"] == "Always" || containers.any(|other| other["name"] == container["name"])
}

fn is_infeasible(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "PodResizePending" && condition["reason"] == "Infeasible")
}
