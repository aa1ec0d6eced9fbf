//! The spec of a pod, in the pod itself or in the template of a controller.

mod container;
mod ephemeral_containers;
mod scheduling;
pub(crate) mod security_profiles;
mod volume;
mod warnings;

use std::collections::BTreeSet;

use serde_json::Value;

use super::field::Field;
use crate::apiserver::validation::{
    errors::{Errors, list, text},
    names,
};
use container::Pod;
pub(crate) use ephemeral_containers::validate_update as validate_ephemeral_containers_update;
pub(crate) use scheduling::complete as complete_scheduling;
pub(crate) use volume::validate_no_back_steps;
pub(crate) use warnings::warnings;

/// The lists of containers in a spec, in upstream's order.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The containers of all lists.
fn containers<'a>(spec: &Field<'a>) -> impl Iterator<Item = Field<'a>> + use<'a> {
    CONTAINER_LISTS.map(|list| spec.at(list).items()).into_iter().flatten()
}

/// Validates a pod's spec; `template` says that it stands in a controller, which has checked the restart policy.
pub(crate) fn validate_spec(spec: &Value, path: &str, template: bool, errors: &mut Errors) {
    let field = Field { value: spec, path: path.to_owned() };
    let volumes = volume::all(spec, path, errors);
    let host_network = spec["hostNetwork"] == true;
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let mut pod = Pod { volumes, host_network, grace, names: BTreeSet::new(), host_ports: BTreeSet::new() };
    if list(spec, "containers").next().is_none() {
        errors.required(format!("{path}.containers"), "");
    }
    for (key, init) in [("containers", false), ("initContainers", true)] {
        for (at, each) in list(spec, key) {
            container::container(each, &format!("{path}.{key}[{at}]"), init, &mut pod, errors);
        }
        // Only containers that run at the same time compete for ports.
        pod.host_ports.clear();
    }
    ephemeral_containers::validate(spec, path, &mut pod, errors);
    if template && list(spec, "ephemeralContainers").next().is_some() {
        errors.forbidden(format!("{path}.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
    if !template {
        errors.one_of(format!("{path}.restartPolicy"), &spec["restartPolicy"], &["Always", "OnFailure", "Never"]);
    }
    errors.one_of(
        format!("{path}.dnsPolicy"),
        &spec["dnsPolicy"],
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    names::labels(&spec["nodeSelector"], &format!("{path}.nodeSelector"), errors);
    let context = &spec["securityContext"];
    container::ids(context, &format!("{path}.securityContext"), &["runAsUser", "runAsGroup", "fsGroup"], errors);
    for (at, group) in list(context, "supplementalGroups") {
        container::id(group, format!("{path}.securityContext.supplementalGroups[{at}]"), errors);
    }
    security_profiles::validate_context(&field.at("securityContext"), errors);
    scheduling::validate_affinity(&field.at("affinity"), errors);
    if spec["dnsPolicy"] == "None" && list(&spec["dnsConfig"], "nameservers").next().is_none() {
        errors.required(
            format!("{path}.dnsConfig.nameservers"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        );
    }
    scheduling::validate_spread(&field.at("topologySpreadConstraints"), errors);
    for key in ["serviceAccountName", "nodeName"] {
        field.at(key).optionally_fits(names::subdomain, errors);
    }
    let deadline = &spec["activeDeadlineSeconds"];
    if deadline.as_i64().is_some_and(|n| !(1..=i64::from(i32::MAX)).contains(&n)) {
        errors.invalid(
            format!("{path}.activeDeadlineSeconds"),
            deadline,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for key in ["hostname", "subdomain"] {
        field.at(key).optionally_fits(names::label, errors);
    }
    tolerations(spec, path, errors);
    for (at, alias) in list(spec, "hostAliases") {
        errors.unless(format!("{path}.hostAliases[{at}].ip"), text(alias, "ip"), names::ip(text(alias, "ip")));
    }
}

/// Validates what a RuntimeClass adds to the requests of its pods.
pub(crate) fn validate_overhead(overhead: &Value, path: &str, errors: &mut Errors) {
    container::resources(&serde_json::json!({"limits": overhead}), path, errors);
}

/// Validates `tolerations` of a pod or of a RuntimeClass.
pub(crate) fn tolerations(spec: &Value, path: &str, errors: &mut Errors) {
    for (at, toleration) in list(spec, "tolerations") {
        let here = format!("{path}.tolerations[{at}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if !key.is_empty() {
            Field { value: &toleration["key"], path: format!("{here}.key") }.label_key(errors);
        } else if operator != "Exists" {
            errors.invalid_text(
                format!("{here}.operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        errors.optional_one_of(format!("{here}.operator"), &toleration["operator"], &["Equal", "Exists"]);
        if operator == "Exists" && !text(toleration, "value").is_empty() {
            errors.invalid(format!("{here}.operator"), toleration, "value must be empty when `operator` is 'Exists'");
        }
        errors.optional_one_of(
            format!("{here}.effect"),
            &toleration["effect"],
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
        );
        if toleration["tolerationSeconds"].is_number() && text(toleration, "effect") != "NoExecute" {
            errors.invalid(
                format!("{here}.effect"),
                &toleration["effect"],
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
    }
}
