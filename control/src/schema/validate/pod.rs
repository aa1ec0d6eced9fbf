//! Pods, and what makes them: templates in controllers.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    container::{self, Pod},
    errors::{Errors, list, text},
    names, volume,
};

/// Checks a pod's spec; `template` says that it stands in a controller, which has checked the restart policy.
pub(super) fn spec(spec: &Value, path: &str, template: bool, errors: &mut Errors) {
    if !template {
        errors.one_of(format!("{path}.restartPolicy"), &spec["restartPolicy"], &["Always", "OnFailure", "Never"]);
    }
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
    if template && list(spec, "ephemeralContainers").next().is_some() {
        errors.forbidden(format!("{path}.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
    errors.one_of(
        format!("{path}.dnsPolicy"),
        &spec["dnsPolicy"],
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    if spec["dnsPolicy"] == "None" && list(&spec["dnsConfig"], "nameservers").next().is_none() {
        errors.required(
            format!("{path}.dnsConfig.nameservers"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        );
    }
    errors.at_least_0(format!("{path}.terminationGracePeriodSeconds"), &spec["terminationGracePeriodSeconds"]);
    let deadline = &spec["activeDeadlineSeconds"];
    if deadline.as_i64().is_some_and(|n| !(1..=i64::from(i32::MAX)).contains(&n)) {
        errors.invalid(
            format!("{path}.activeDeadlineSeconds"),
            deadline,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    names::labels(&spec["nodeSelector"], &format!("{path}.nodeSelector"), errors);
    for (key, check) in [
        ("serviceAccountName", names::subdomain as fn(&str) -> Option<String>),
        ("nodeName", names::subdomain),
        ("hostname", names::label),
        ("subdomain", names::label),
    ] {
        if !text(spec, key).is_empty() {
            errors.unless(format!("{path}.{key}"), text(spec, key), check(text(spec, key)));
        }
    }
    for (at, alias) in list(spec, "hostAliases") {
        errors.unless(format!("{path}.hostAliases[{at}].ip"), text(alias, "ip"), names::ip(text(alias, "ip")));
    }
    let context = &spec["securityContext"];
    container::ids(context, &format!("{path}.securityContext"), &["runAsUser", "runAsGroup", "fsGroup"], errors);
    for (at, group) in list(context, "supplementalGroups") {
        container::id(group, format!("{path}.securityContext.supplementalGroups[{at}]"), errors);
    }
    tolerations(spec, path, errors);
}

fn tolerations(spec: &Value, path: &str, errors: &mut Errors) {
    for (at, toleration) in list(spec, "tolerations") {
        let here = format!("{path}.tolerations[{at}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if !key.is_empty() {
            errors.unless(format!("{here}.key"), key, names::qualified(key));
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

pub(super) fn replication_controller(spec: &Value, errors: &mut Errors) {
    errors.at_least_0("spec.replicas", &spec["replicas"]);
    errors.at_least_0("spec.minReadySeconds", &spec["minReadySeconds"]);
    let selector = &spec["selector"];
    if selector.as_object().is_none_or(Map::is_empty) {
        errors.required("spec.selector", "");
    }
    let template = &spec["template"];
    if !template.is_object() {
        return errors.required("spec.template", "");
    }
    let labels = &template["metadata"]["labels"];
    if selector.as_object().into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        let carried = if labels.is_null() { Value::Object(Map::new()) } else { labels.clone() };
        errors.invalid("spec.template.metadata.labels", &carried, "`selector` does not match template `labels`");
    }
    names::labels(labels, "spec.template.labels", errors);
    self::spec(&template["spec"], "spec.template.spec", true, errors);
    errors.one_of("spec.template.spec.restartPolicy", &template["spec"]["restartPolicy"], &["Always"]);
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        errors.forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in ReplicationController is not Supported",
        );
    }
}

const IMMUTABLE_FIELDS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// What may change in a pod that lives: images, a shorter deadline, added tolerations, gates taken away.
pub(super) fn change(new: &Value, old: &Value, errors: &mut Errors) {
    for key in ["containers", "initContainers"] {
        if list(new, key).count() != list(old, key).count() {
            return errors.forbidden(format!("spec.{key}"), "pod updates may not add or remove containers");
        }
    }
    let deadline = (old["activeDeadlineSeconds"].as_i64(), new["activeDeadlineSeconds"].as_i64());
    match deadline {
        (Some(_), None) => errors.invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        ),
        (Some(was), Some(is)) if is > was => {
            errors.invalid(
                "spec.activeDeadlineSeconds",
                &new["activeDeadlineSeconds"],
                "must be less than or equal to previous value",
            );
        }
        _ => {}
    }
    // How long one lasts may change, nothing else of it.
    let lasting = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().and_then(|fields| fields.remove("tolerationSeconds"));
        toleration
    };
    let there: Vec<Value> = list(new, "tolerations").map(|(_, toleration)| lasting(toleration)).collect();
    if list(old, "tolerations").any(|(_, kept)| !there.contains(&lasting(kept))) {
        errors.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
    if list(new, "schedulingGates").any(|(_, gate)| !list(old, "schedulingGates").any(|(_, was)| was == gate)) {
        errors.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate");
    }
    let mut changed = Vec::new();
    let keys: BTreeSet<&String> = [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
    for key in keys {
        match key.as_str() {
            "activeDeadlineSeconds" | "tolerations" | "schedulingGates" => {}
            "containers" | "initContainers" => {
                for ((at, is), (_, was)) in list(new, key).zip(list(old, key)) {
                    let fields: BTreeSet<&String> =
                        [is, was].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
                    let others = fields.into_iter().filter(|f| *f != "image" && is[f.as_str()] != was[f.as_str()]);
                    changed.extend(others.map(|field| format!("spec.{key}[{at}].{field}")));
                }
            }
            "terminationGracePeriodSeconds" if old[key].as_i64().is_some_and(|n| n < 0) && new[key] == 1 => {}
            key if new[key] != old[key] => changed.push(format!("spec.{key}")),
            _ => {}
        }
    }
    if !changed.is_empty() {
        errors.forbidden("spec", &format!("{IMMUTABLE_FIELDS}\nchanged: {}", changed.join(", ")));
    }
}
