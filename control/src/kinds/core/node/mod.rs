//! Node.

mod proxy;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set;

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        KubeletClient, Strategy,
        subresource::Subresource,
        types::{Definition, Resource, VersionSpec},
        validation::{
            errors::{Errors, list, text},
            names,
        },
    },
    kinds::{
        shared::{
            cells::{self, or_none, or_unknown},
            tables::{AGE, column, named, wide},
            validate_amounts,
        },
        types,
    },
};

/// The resource. Without a kubelet client its API cannot be reached.
pub(crate) fn definition(kubelet: Option<KubeletClient>) -> Definition {
    let mut resource = Resource::new("", "nodes", "Node", Node);
    resource.short_names = vec!["no".into()];
    resource.namespaced = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Node"));
    v1.selectable = vec![SelectableField::with_absent("spec.unschedulable", "false")];
    v1.subresources = vec![Subresource::proxy("NodeProxyOptions", proxy::Proxy { kubelet }), Subresource::status()];
    let columns = vec![
        column("Status", "Whether pods can run there."),
        column("Roles", "What it is for."),
        AGE,
        column("Version", "Version of its agent."),
        wide("Internal-IP", "Its address in the cluster."),
        wide("External-IP", "Its address outside."),
        wide("OS-Image", "Its operating system."),
        wide("Kernel-Version", "Its kernel."),
        wide("Container-Runtime", "What runs its containers."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let info = &object["status"]["nodeInfo"];
    let address = |kind: &str| {
        let all = object["status"]["addresses"].as_array();
        let found = all.into_iter().flatten().find(|a| a["type"] == kind);
        or_none(found.map(|a| cells::text(&a["address"]).to_owned()).unwrap_or_default())
    };
    vec![
        json!(node_status(object)),
        json!(node_roles(object)),
        json!(age),
        info["kubeletVersion"].clone(),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(or_unknown(&info["osImage"])),
        json!(or_unknown(&info["kernelVersion"])),
        json!(or_unknown(&info["containerRuntimeVersion"])),
    ]
}

fn node_status(object: &Value) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    let word = match ready.map(|c| cells::text(&c["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if object["spec"]["unschedulable"] == true { format!("{word},SchedulingDisabled") } else { word.to_owned() }
}

fn node_roles(object: &Value) -> String {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(k, v)| {
            k.strip_prefix("node-role.kubernetes.io/")
                .filter(|r| !r.is_empty())
                .or_else(|| (k == "kubernetes.io/role").then(|| cells::text(v)))
        })
        .collect();
    roles.sort_unstable();
    or_none(roles.join(","))
}

#[derive(Debug)]
struct Node;

impl Strategy for Node {
    /// What a node has it may allocate, unless it says otherwise.
    fn default(&self, object: &mut Map<String, Value>) {
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
            && let Some(capacity) = status.get("capacity").filter(|all| all.is_object()).cloned()
        {
            set(status, "allocatable", capacity);
        }
    }

    /// A node registers with its status.
    fn keeps_status_on_create(&self) -> bool {
        true
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        let mut seen = BTreeSet::new();
        for (at, taint) in list(spec, "taints") {
            // As upstream names it, whose check is that of the metadata.
            let here = format!("metadata.taints[{at}]");
            let (key, effect) = (text(taint, "key"), text(taint, "effect"));
            errors.unless(format!("{here}.key"), key, names::qualified(key));
            errors.unless(format!("{here}.value"), text(taint, "value"), names::label_value(text(taint, "value")));
            if effect.is_empty() {
                errors.required(format!("{here}.effect"), "");
            } else {
                errors.one_of(
                    format!("{here}.effect"),
                    &taint["effect"],
                    &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                );
            }
            if !seen.insert((key, effect)) {
                errors.duplicate(here, taint);
            }
        }
        for (at, cidr) in list(spec, "podCIDRs") {
            if !is_cidr(cidr.as_str().unwrap_or_default()) {
                errors.invalid(
                    format!("spec.podCIDRs[{at}]"),
                    cidr,
                    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                );
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let (new, old) = (&new["spec"], &old["spec"]);
        let set = |value: &Value| value.as_array().is_some_and(|all| !all.is_empty());
        if set(&old["podCIDRs"]) && new["podCIDRs"] != old["podCIDRs"] {
            errors.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        if !text(old, "providerID").is_empty() && new["providerID"] != old["providerID"] {
            errors.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        for field in ["capacity", "allocatable"] {
            validate_amounts(&new["status"], field, errors);
        }
        validate_features(&new["status"], errors);
    }
}

/// Features must be sorted, so that two lists of the same features are equal.
fn validate_features(status: &Value, errors: &mut Errors) {
    let all: Vec<(usize, &Value)> = list(status, "declaredFeatures").collect();
    for pair in all.windows(2) {
        let ((_, before), (at, feature)) = (pair[0], pair[1]);
        if before.as_str() >= feature.as_str() {
            errors.invalid(format!("status.declaredFeatures[{at}]"), feature, "list must be sorted alphabetically");
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((ip, length)) = text.split_once('/') else { return false };
    match (ip.parse::<std::net::IpAddr>(), length.parse::<u8>()) {
        (Ok(ip), Ok(length)) => length <= if ip.is_ipv4() { 32 } else { 128 },
        _ => false,
    }
}
