//! Node.

mod proxy;

use std::{cmp::Ordering, collections::BTreeSet};

use serde_json::{Map, Value, json};
use windlass_kit::{
    net::{Cidr, Family},
    objects::pod_defaults::set,
};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        KubeletClient, Strategy,
        pipeline::validation::{
            errors::{Cause, Errors, list, text},
            names,
        },
        types::{Definition, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, or_none, or_unknown},
            field::Field,
            go_json,
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

/// The longest name of a feature.
const MAX_FEATURE: usize = 253;
/// Where taints were before there was a field.
const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

#[derive(Debug)]
struct Node;

impl Strategy for Node {
    /// What a node has it may allocate, unless it says otherwise.
    fn default(&self, object: &mut Map<String, Value>) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            normalize_pod_cidrs(spec);
        }
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
            && let Some(capacity) = status.get("capacity").filter(|all| all.is_object()).cloned()
        {
            set(status, "allocatable", capacity);
        }
    }

    /// Nodes are not configured by objects any more.
    fn complete_create(&self, object: &mut Value, _is_labelled: bool) {
        remove_config_source(object);
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        if old["spec"]["configSource"].is_null() {
            remove_config_source(object);
        }
    }

    /// A node registers with its status.
    fn keeps_status_on_create(&self) -> bool {
        true
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        annotations(object, errors);
        // As upstream names it, whose check is that of the metadata.
        taints(&object["spec"]["taints"], "metadata.taints", errors);
        pod_cidrs(&Field::root(object).below("spec.podCIDRs"), errors);
        validate_status(&object["status"], errors);
        // As upstream, which does not look at it when the status alone is written.
        let swap = &object["status"]["nodeInfo"]["swap"]["capacity"];
        if swap.as_i64().is_some_and(|capacity| capacity <= 0) {
            errors.invalid("metadata.nodeSwapStatus.capacity", swap, "must be greater than zero");
        }
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let spec = Field::root(new).at("spec");
        let mut told = Vec::new();
        if spec.at("configSource").is_set() {
            told.push("spec.configSource: the feature is removed".to_owned());
        }
        if !spec.at("externalID").is_empty() {
            told.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
        }
        told.extend(spec.at("podCIDRs").items().flat_map(|range| names::cidr_warning(&range.path, range.text())));
        told
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let (status, new, old) = (&new["status"], &new["spec"], &old["spec"]);
        let set = |value: &Value| value.as_array().is_some_and(|all| !all.is_empty());
        if set(&old["podCIDRs"]) && new["podCIDRs"] != old["podCIDRs"] {
            errors.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        addresses_unique(status, errors);
        if text(new, "externalID") != text(old, "externalID") {
            errors.forbidden("spec.externalID", "may not be updated");
        }
        if !text(old, "providerID").is_empty() && new["providerID"] != old["providerID"] {
            errors.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        annotations(new, errors);
        validate_status(&new["status"], errors);
        addresses_unique(&new["status"], errors);
    }
}

/// Clients that know of one range write `podCIDR` alone; where both are set and differ, it is what counts (upstream: the
/// conversion of NodeSpec).
fn normalize_pod_cidrs(spec: &mut Map<String, Value>) {
    let first = spec.get("podCIDR").and_then(Value::as_str).unwrap_or("").to_owned();
    let listed = spec.get("podCIDRs").and_then(|all| all[0].as_str()).unwrap_or("").to_owned();
    if !first.is_empty() && first != listed {
        spec.insert("podCIDRs".to_owned(), json!([first]));
    } else if first.is_empty() && !listed.is_empty() {
        spec.insert("podCIDR".to_owned(), json!(listed));
    }
}

fn pod_cidrs(ranges: &Field<'_>, errors: &mut Errors) {
    ranges.items().for_each(|range| range.fits(names::cidr, errors));
    let families: BTreeSet<Family> =
        ranges.texts().into_iter().filter_map(Cidr::parse).map(|range| range.family()).collect();
    if ranges.len() > 1 && (ranges.len() > 2 || families.len() != 2) {
        ranges.invalid("may specify no more than one CIDR for each IP family", errors);
    }
}

/// Taints are unique by key and effect.
fn taints(taints: &Value, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (at, taint) in taints.as_array().into_iter().flatten().enumerate() {
        let here = format!("{path}[{at}]");
        let (key, effect) = (text(taint, "key"), text(taint, "effect"));
        errors.unless(format!("{here}.key"), key, names::qualified(key));
        errors.unless(format!("{here}.value"), text(taint, "value"), names::label_value(text(taint, "value")));
        if effect.is_empty() {
            errors.required(format!("{here}.effect"), "");
        } else {
            errors.one_of(format!("{here}.effect"), &taint["effect"], &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
        if !seen.insert((key, effect)) {
            let of = |field: &str| json!(text(taint, field));
            let added = &taint["timeAdded"];
            // Upstream writes its internal type, in the order of its fields.
            let detail = format!(
                "Duplicate value: {{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{added}}}: taints must be \
                 unique by key and effect pair",
                of("key"),
                of("value"),
                of("effect")
            );
            errors.push(here, Cause::Duplicate, detail);
        }
    }
}

/// Which pods should keep away from a node, as its annotation says. Upstream: `ValidateAvoidPodsInNodeAnnotations`.
fn annotations(object: &Value, errors: &mut Errors) {
    if let Some(text) = object["metadata"]["annotations"][TAINTS].as_str().filter(|text| !text.is_empty()) {
        match go_json::read(text) {
            Ok(listed) => taints(&listed, &format!("metadata.annotations.{TAINTS}"), errors),
            Err(why) => errors.invalid_text("metadata.annotations", TAINTS, &why),
        }
    }
    let Some(text) = object["metadata"]["annotations"][AVOID_PODS].as_str().filter(|text| !text.is_empty()) else {
        return;
    };
    let here = "metadata.annotations";
    let avoided: Value = match go_json::read(text) {
        Ok(avoided) => avoided,
        Err(why) => return errors.invalid_text(format!("{here}.AvoidPods"), AVOID_PODS, &why),
    };
    for (at, entry) in list(&avoided, "preferAvoidPods") {
        let field = format!("{here}.{AVOID_PODS}[{at}].PodSignature");
        let controller = &entry["podSignature"]["podController"];
        if controller.is_null() {
            errors.required(field, "");
        } else if controller["controller"] != true {
            let field = format!("{field}.PodController.Controller");
            errors.invalid(field, &json!(false), "must point to a controller");
        }
    }
}

fn remove_config_source(node: &mut Value) {
    node["spec"].as_object_mut().map(|spec| spec.remove("configSource"));
}

fn addresses_unique(status: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (at, address) in list(status, "addresses") {
        if !seen.insert((text(address, "type"), text(address, "address"))) {
            let path = format!("status.addresses[{at}]");
            let field = Field { value: address, path: path.into() };
            field.duplicate_as(&field.internal(&[("Type", "type"), ("Address", "address")]), errors);
        }
    }
}

fn validate_status(status: &Value, errors: &mut Errors) {
    for field in ["capacity", "allocatable"] {
        validate_amounts(status, field, errors);
    }
    validate_features(&Field::root(status).at("declaredFeatures"), errors);
}

/// Features must be sorted, so that two lists of the same features are equal.
fn validate_features(features: &Field<'_>, errors: &mut Errors) {
    let all: Vec<Field<'_>> = features.items().collect();
    for (at, feature) in all.iter().enumerate() {
        let (field, name) = (format!("status.declaredFeatures[{at}]"), feature.text());
        if name.len() > MAX_FEATURE {
            let why = format!("invalid feature name {name:?}: must be no more than {MAX_FEATURE} characters");
            errors.invalid_text(field, name, &why);
        } else if !is_feature(name) {
            let why = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments \
                 separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters \
                 and slashes"
            );
            errors.invalid_text(field, name, &why);
        }
        let Some(next) = all.get(at + 1) else { continue };
        let field = format!("status.declaredFeatures[{}]", at + 1);
        match next.text().cmp(name) {
            Ordering::Equal => errors.duplicate(field, next.value),
            Ordering::Less => errors.invalid_text(field, next.text(), "list must be sorted alphabetically"),
            Ordering::Greater => {}
        }
    }
}

fn is_feature(name: &str) -> bool {
    let segment = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(segment)
}
