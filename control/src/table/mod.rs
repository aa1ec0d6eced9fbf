//! The columns that `kubectl get` shows, computed here for each kind. Pure; the time is a value.

mod cells;
mod pod;

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::Gvk;
use cells::{age, joined, map_of, or_none, or_unknown, text};

/// One column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub type_: &'static str,
    /// `name` for the first one.
    pub format: &'static str,
    /// What it means.
    pub description: &'static str,
    /// Above 0 it shows with `-o wide` only.
    pub priority: i32,
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column { name, type_: "string", format: "", description, priority: 0 }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    Column { name, type_: "string", format: "", description, priority: 1 }
}

const fn count(name: &'static str, description: &'static str) -> Column {
    Column { name, type_: "integer", format: "", description, priority: 0 }
}

const NAME: Column = Column {
    name: "Name",
    type_: "string",
    format: "name",
    description: "Name must be unique within a namespace.",
    priority: 0,
};
const AGE: Column = column("Age", "Time since the object was created.");

/// The columns of a kind.
#[must_use]
pub fn columns(gvk: &Gvk) -> Vec<Column> {
    let rest: &[Column] = match gvk.kind {
        "Pod" => &[
            column("Ready", "Containers that are ready, of all."),
            column("Status", "What the pod is doing."),
            column("Restarts", "How often containers were started again."),
            AGE,
            wide("IP", "The pod's address."),
            wide("Node", "Where it runs."),
            wide("Nominated Node", "Where it may run soon."),
            wide("Readiness Gates", "Conditions that it waits for."),
        ],
        "ReplicationController" => &[
            count("Desired", "Pods that are wanted."),
            count("Current", "Pods that there are."),
            count("Ready", "Pods that are ready."),
            AGE,
            wide("Containers", "Names of the template's containers."),
            wide("Images", "Images of the template's containers."),
            wide("Selector", "Labels of its pods."),
        ],
        "Service" => &[
            column("Type", "How it is reached."),
            column("Cluster-IP", "Its address in the cluster."),
            column("External-IP", "Its addresses outside."),
            column("Port(s)", "Its ports."),
            AGE,
            wide("Selector", "Labels of its pods."),
        ],
        "Endpoints" => &[column("Endpoints", "Addresses and ports."), AGE],
        "EndpointSlice" => &[
            column("AddressType", "Kind of addresses."),
            column("Ports", "Ports."),
            column("Endpoints", "Addresses."),
            AGE,
        ],
        "Node" => &[
            column("Status", "Whether pods can run there."),
            column("Roles", "What it is for."),
            AGE,
            column("Version", "Version of its agent."),
            wide("Internal-IP", "Its address in the cluster."),
            wide("External-IP", "Its address outside."),
            wide("OS-Image", "Its operating system."),
            wide("Kernel-Version", "Its kernel."),
            wide("Container-Runtime", "What runs its containers."),
        ],
        "Namespace" => &[column("Status", "Whether it is in use."), AGE],
        "Event" => {
            return vec![
                column("Last Seen", "When it happened last."),
                column("Type", "Normal or Warning."),
                column("Reason", "One word for it."),
                column("Object", "What it is about."),
                wide("Subobject", "Which part of it."),
                wide("Source", "Who told it."),
                column("Message", "What happened."),
                wide("First Seen", "When it happened first."),
                wide("Count", "How often it happened."),
                Column { priority: 1, ..NAME },
            ];
        }
        "ConfigMap" => &[count("Data", "Number of keys."), AGE],
        "Secret" => &[column("Type", "What it holds."), count("Data", "Number of keys."), AGE],
        "PersistentVolume" => &[
            column("Capacity", "How much it holds."),
            column("Access Modes", "How it can be mounted."),
            column("Reclaim Policy", "What becomes of it when its claim is gone."),
            column("Status", "Whether it is bound."),
            column("Claim", "The claim it is bound to."),
            column("StorageClass", "Its class."),
            column("VolumeAttributesClass", "Its class of attributes."),
            column("Reason", "Why it is as it is."),
            AGE,
            wide("VolumeMode", "Files, or a raw device."),
        ],
        "PersistentVolumeClaim" => &[
            column("Status", "Whether it is bound."),
            column("Volume", "The volume it is bound to."),
            column("Capacity", "How much that holds."),
            column("Access Modes", "How it can be mounted."),
            column("StorageClass", "Its class."),
            column("VolumeAttributesClass", "Its class of attributes."),
            AGE,
            wide("VolumeMode", "Files, or a raw device."),
        ],
        "StorageClass" => &[
            column("Provisioner", "Who makes its volumes."),
            column("ReclaimPolicy", "What becomes of them when their claims are gone."),
            column("VolumeBindingMode", "When claims are bound."),
            column("AllowVolumeExpansion", "Whether they can grow."),
            AGE,
        ],
        "RuntimeClass" => &[column("Handler", "The runtime's name on the nodes."), AGE],
        "NodeMetrics" | "PodMetrics" => {
            const USAGE: [Column; 3] = [
                column("cpu", "CPU in use."),
                column("memory", "Memory in use that cannot be freed easily."),
                column("Window", "The time that CPU was measured over."),
            ];
            return std::iter::once(NAME).chain(USAGE).collect();
        }
        "Lease" => &[column("Holder", "Who holds it."), AGE],
        _ => &[AGE],
    };
    std::iter::once(NAME).chain(rest.iter().copied()).collect()
}

/// The cells of one object, as many as there are columns.
#[must_use]
pub fn row(gvk: &Gvk, object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let name = object["metadata"]["name"].clone();
    let age = age(text(&object["metadata"]["creationTimestamp"]), now);
    match gvk.kind {
        "Pod" => pod::row(object, &age, now),
        "ReplicationController" => {
            let containers = spec["template"]["spec"]["containers"].as_array();
            let all = |key: &str| joined(containers.into_iter().flatten().map(|c| text(&c[key]).to_owned()));
            let number = |v: &Value| json!(v.as_i64().unwrap_or(0));
            vec![
                name,
                number(&spec["replicas"]),
                number(&status["replicas"]),
                number(&status["readyReplicas"]),
                json!(age),
                json!(all("name")),
                json!(all("image")),
                json!(or_none(map_of(&spec["selector"]))),
            ]
        }
        "Service" => vec![
            name,
            spec["type"].clone(),
            json!(or_none(text(&spec["clusterIP"]).to_owned())),
            json!(cells::external_ip(object)),
            json!(cells::service_ports(spec)),
            json!(age),
            json!(or_none(map_of(&spec["selector"]))),
        ],
        "Endpoints" => vec![name, json!(cells::endpoints(object)), json!(age)],
        "EndpointSlice" => vec![
            name,
            object["addressType"].clone(),
            json!(cells::slice_ports(object)),
            json!(cells::slice_addresses(object)),
            json!(age),
        ],
        "Node" => {
            let info = &status["nodeInfo"];
            let address = |kind: &str| {
                let all = status["addresses"].as_array();
                or_none(
                    all.into_iter()
                        .flatten()
                        .find(|a| a["type"] == kind)
                        .map(|a| text(&a["address"]).to_owned())
                        .unwrap_or_default(),
                )
            };
            vec![
                name,
                json!(cells::node_status(object)),
                json!(cells::node_roles(object)),
                json!(age),
                info["kubeletVersion"].clone(),
                json!(address("InternalIP")),
                json!(address("ExternalIP")),
                json!(or_unknown(&info["osImage"])),
                json!(or_unknown(&info["kernelVersion"])),
                json!(or_unknown(&info["containerRuntimeVersion"])),
            ]
        }
        "Namespace" => vec![name, status["phase"].clone(), json!(age)],
        "Event" => cells::event(object, name, now),
        "ConfigMap" => vec![name, json!(cells::keys(object, &["data", "binaryData"])), json!(age)],
        "Secret" => vec![name, object["type"].clone(), json!(cells::keys(object, &["data"])), json!(age)],
        "PersistentVolume" => {
            let claim = &spec["claimRef"];
            let holder = format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]));
            vec![
                name,
                spec["capacity"]["storage"].clone(),
                json!(cells::access_modes(&spec["accessModes"])),
                spec["persistentVolumeReclaimPolicy"].clone(),
                json!(cells::phase(object)),
                json!(if claim.is_object() { holder } else { String::new() }),
                json!(text(&spec["storageClassName"])),
                json!(or_unset(&spec["volumeAttributesClassName"])),
                json!(text(&status["reason"])),
                json!(age),
                spec["volumeMode"].clone(),
            ]
        }
        "PersistentVolumeClaim" => vec![
            name,
            json!(cells::phase(object)),
            json!(text(&spec["volumeName"])),
            json!(text(&status["capacity"]["storage"])),
            json!(cells::access_modes(&status["accessModes"])),
            json!(text(&spec["storageClassName"])),
            json!(or_unset(&spec["volumeAttributesClassName"])),
            json!(age),
            spec["volumeMode"].clone(),
        ],
        "StorageClass" => {
            let default = object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
            let shown = if default { format!("{} (default)", text(&name)) } else { text(&name).to_owned() };
            vec![
                json!(shown),
                object["provisioner"].clone(),
                object["reclaimPolicy"].clone(),
                object["volumeBindingMode"].clone(),
                json!(object["allowVolumeExpansion"].as_bool().unwrap_or(false).to_string()),
                json!(age),
            ]
        }
        "RuntimeClass" => vec![name, object["handler"].clone(), json!(age)],
        "NodeMetrics" | "PodMetrics" => {
            vec![
                name,
                json!(cells::used(object, "cpu")),
                json!(cells::used(object, "memory")),
                object["window"].clone(),
            ]
        }
        "Lease" => vec![name, spec["holderIdentity"].clone(), json!(age)],
        _ => vec![name, json!(age)],
    }
}

/// As `kubectl` shows a name that is not set.
fn or_unset(name: &Value) -> &str {
    name.as_str().filter(|n| !n.is_empty()).unwrap_or("<unset>")
}
