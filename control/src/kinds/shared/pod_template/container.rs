//! One container of a pod: image, ports, environment, mounts, resources, probes.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::{security_profiles, volume::validate_local_descending_path};
use crate::{
    apiserver::validation::{
        errors::{AT_LEAST_0, Errors, PORT, list, text},
        names,
    },
    kinds::shared::field::Field,
};

/// What the containers of a pod share.
#[derive(Debug)]
pub(super) struct Pod<'a> {
    pub(super) volumes: BTreeSet<&'a str>,
    pub(super) host_network: bool,
    /// How long its end may take, in seconds.
    pub(super) grace: i64,
    pub(super) names: BTreeSet<&'a str>,
    pub(super) host_ports: BTreeSet<(i64, &'a str, &'a str)>,
}

pub(super) fn container<'a>(container: &'a Value, here: &str, init: bool, pod: &mut Pod<'a>, errors: &mut Errors) {
    common(container, here, pod, errors);
    if !pod.names.insert(text(container, "name")) {
        errors.duplicate(format!("{here}.name"), &container["name"]);
    }
    let sidecar = container["restartPolicy"] == "Always";
    if init {
        errors.optional_one_of(
            format!("{here}.restartPolicy"),
            &container["restartPolicy"],
            &["Always", "Never", "OnFailure"],
        );
    }
    for (kind, single) in [("livenessProbe", true), ("startupProbe", true), ("readinessProbe", false)] {
        if container[kind].is_null() {
            continue;
        }
        let here = format!("{here}.{kind}");
        if init && !sidecar {
            errors.forbidden(here, "may not be set for init containers without restartPolicy=Always");
            continue;
        }
        probe(&container[kind], &here, single, errors);
    }
    for kind in ["postStart", "preStop"] {
        let hook = &container["lifecycle"][kind];
        if hook.is_null() {
            continue;
        }
        if init && !sidecar {
            errors.forbidden(
                format!("{here}.lifecycle"),
                "may not be set for init containers without restartPolicy=Always",
            );
        } else {
            let here = format!("{here}.lifecycle.{kind}");
            handler(hook, &here, &["exec", "httpGet", "sleep", "tcpSocket"], errors);
            let seconds = &hook["sleep"]["seconds"];
            if seconds.as_i64().is_some_and(|seconds| !(0..=pod.grace).contains(&seconds)) {
                let grace = pod.grace;
                let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.invalid(format!("{here}.sleep"), seconds, &why);
            }
        }
    }
}

/// Checks what containers of all sorts have.
pub(super) fn common<'a>(container: &'a Value, here: &str, pod: &mut Pod<'a>, errors: &mut Errors) {
    let name = text(container, "name");
    if name.is_empty() {
        errors.required(format!("{here}.name"), "");
    } else {
        errors.unless(format!("{here}.name"), name, names::label(name));
    }
    let image = text(container, "image");
    if image.trim().is_empty() {
        errors.required(format!("{here}.image"), "");
    }
    errors.one_of(
        format!("{here}.terminationMessagePolicy"),
        &container["terminationMessagePolicy"],
        &["File", "FallbackToLogsOnError"],
    );
    ports(container, here, pod, errors);
    environment(container, here, errors);
    mounts(container, here, &pod.volumes, errors);
    errors.one_of(
        format!("{here}.imagePullPolicy"),
        &container["imagePullPolicy"],
        &["Always", "IfNotPresent", "Never"],
    );
    resources(&container["resources"], &format!("{here}.resources"), errors);
    let context = Field { value: &container["securityContext"], path: format!("{here}.securityContext") };
    ids(context.value, &context.path, &["runAsUser", "runAsGroup"], errors);
    security_profiles::validate_context(&context, errors);
    if image.trim() != image && !image.trim().is_empty() {
        errors.invalid_text(format!("{here}.image"), image, "must not have leading or trailing whitespace");
    }
}

/// Checks who somebody may be.
pub(super) fn ids(context: &Value, here: &str, keys: &[&str], errors: &mut Errors) {
    for key in keys {
        id(&context[key], format!("{here}.{key}"), errors);
    }
}

pub(super) fn id(id: &Value, here: String, errors: &mut Errors) {
    if id.as_i64().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        errors.invalid(here, id, "must be between 0 and 2147483647, inclusive");
    }
}

fn ports<'a>(container: &'a Value, here: &str, pod: &mut Pod<'a>, errors: &mut Errors) {
    let mut port_names = BTreeSet::new();
    for (at, port) in list(container, "ports") {
        let here = format!("{here}.ports[{at}]");
        let name = text(port, "name");
        if !name.is_empty() {
            if let Some(why) = names::port_name(name) {
                errors.invalid_text(format!("{here}.name"), name, &why);
            } else if !port_names.insert(name) {
                errors.duplicate(format!("{here}.name"), &port["name"]);
            }
        }
        match port["containerPort"].as_i64() {
            None | Some(0) => errors.required(format!("{here}.containerPort"), ""),
            Some(1..=65535) => {}
            Some(_) => errors.invalid(format!("{here}.containerPort"), &port["containerPort"], PORT),
        }
        errors.one_of(format!("{here}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]);
        let Some(host_port) = port["hostPort"].as_i64().filter(|n| *n != 0) else { continue };
        if !names::is_port(&port["hostPort"]) {
            errors.invalid(format!("{here}.hostPort"), &port["hostPort"], PORT);
        } else if pod.host_network && port["hostPort"] != port["containerPort"] {
            errors.invalid(
                format!("{here}.hostPort"),
                &port["hostPort"],
                "must match `containerPort` when `hostNetwork` is true",
            );
        } else if !pod.host_ports.insert((host_port, text(port, "protocol"), text(port, "hostIP"))) {
            errors.duplicate(
                format!("{here}.hostPort"),
                &Value::from(format!("{}/{}/{host_port}", text(port, "protocol"), text(port, "hostIP"))),
            );
        }
        let ip = text(port, "hostIP");
        if !ip.is_empty() {
            errors.unless(format!("{here}.hostIP"), ip, names::ip(ip));
        }
    }
}

/// What a variable may take from its pod.
const POD_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn environment(container: &Value, here: &str, errors: &mut Errors) {
    for (at, variable) in list(container, "env") {
        let here = format!("{here}.env[{at}]");
        let name = text(variable, "name");
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        } else {
            errors.unless(format!("{here}.name"), name, names::variable(name));
        }
        let Some(from) = variable["valueFrom"].as_object() else { continue };
        let here = format!("{here}.valueFrom");
        if !text(variable, "value").is_empty() {
            errors.invalid_text(&here, "", "may not be specified when `value` is not empty");
        }
        let sources: Vec<_> = from.iter().filter(|(_, v)| !v.is_null()).collect();
        match sources.as_slice() {
            [] => errors.invalid_text(
                &here,
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ),
            [(kind, source)] => match kind.as_str() {
                "fieldRef" => {
                    let path = text(source, "fieldPath");
                    let keyed = ["metadata.labels['", "metadata.annotations['"].iter().any(|p| path.starts_with(p) && path.ends_with("']"));
                    if path.is_empty() {
                        errors.required(format!("{here}.fieldRef.fieldPath"), "");
                    } else if !keyed {
                        errors.one_of(format!("{here}.fieldRef.fieldPath"), &source["fieldPath"], POD_FIELDS);
                    }
                }
                "configMapKeyRef" | "secretKeyRef" => {
                    if text(source, "name").is_empty() {
                        errors.required(format!("{here}.{kind}.name"), "");
                    }
                    match text(source, "key") {
                        "" => errors.required(format!("{here}.{kind}.key"), ""),
                        key => errors.unless(format!("{here}.{kind}.key"), key, names::config_key(key)),
                    }
                }
                "resourceFieldRef" if text(source, "resource").is_empty() => errors.required(format!("{here}.{kind}.resource"), ""),
                _ => {}
            },
            _ => errors.invalid_text(&here, "", "may not have more than one field specified at a time"),
        }
    }
    for (at, from) in list(container, "envFrom") {
        // Upstream tells of the list where it is one of its items.
        let all = format!("{here}.envFrom");
        let here = format!("{all}[{at}]");
        match (from["configMapRef"].is_object(), from["secretRef"].is_object()) {
            (false, false) => errors.invalid_text(all, "", "must specify one of: `configMapRef` or `secretRef`"),
            (true, true) => errors.invalid_text(all, "", "may not have more than one field specified at a time"),
            (config_map, _) => {
                let kind = if config_map { "configMapRef" } else { "secretRef" };
                if text(&from[kind], "name").is_empty() {
                    errors.required(format!("{here}.{kind}.name"), "");
                }
            }
        }
    }
}

fn mounts(container: &Value, here: &str, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    let mut paths = BTreeSet::new();
    for (at, mount) in list(container, "volumeMounts") {
        // Upstream tells of the list where it is one of its items.
        let all = format!("{here}.volumeMounts");
        let here = format!("{all}[{at}]");
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        }
        if !volumes.contains(name) {
            errors.not_found(format!("{here}.name"), &Value::from(name));
        }
        if path.is_empty() {
            errors.required(format!("{here}.mountPath"), "");
        }
        if !paths.insert(path) {
            errors.invalid_text(format!("{here}.mountPath"), path, "must be unique");
        }
        for key in ["subPath", "subPathExpr"] {
            let sub = text(mount, key);
            if key == "subPathExpr" && !sub.is_empty() && !text(mount, "subPath").is_empty() {
                let why = "subPathExpr and subPath are mutually exclusive";
                errors.invalid_text(format!("{here}.{key}"), sub, why);
            }
            validate_local_descending_path(&format!("{all}.{key}"), sub, errors);
        }
    }
}

pub(super) fn resources(resources: &Value, here: &str, errors: &mut Errors) {
    for kind in ["limits", "requests"] {
        for (resource, amount) in resources[kind].as_object().into_iter().flatten() {
            let field = format!("{here}.{kind}[{resource}]");
            let known = matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage")
                || resource.starts_with("hugepages-");
            if !known && !resource.contains('/') {
                errors.invalid_text(&field, resource, "must be a standard resource type or fully qualified");
                errors.invalid_text(&field, resource, "must be a standard resource for containers");
            } else if !known {
                errors.unless(&field, resource, names::qualified(resource));
            }
            let Some(quantity) = quantity(amount) else {
                errors.invalid(
                    field,
                    amount,
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                );
                continue;
            };
            if quantity.is_negative() {
                errors.invalid(field, amount, AT_LEAST_0);
            } else if kind == "requests" {
                let limit = resources["limits"].get(resource).and_then(self::quantity);
                if let Some(limit) = limit.filter(|limit| quantity > *limit) {
                    errors.invalid(
                        format!("{here}.requests"),
                        amount,
                        &format!("must be less than or equal to {resource} limit of {limit}"),
                    );
                }
            }
        }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn probe(probe: &Value, here: &str, single: bool, errors: &mut Errors) {
    handler(probe, here, &["exec", "grpc", "httpGet", "tcpSocket"], errors);
    for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        errors.at_least_0(format!("{here}.{key}"), &probe[key]);
    }
    if single && probe["successThreshold"].as_i64().is_some_and(|n| n != 1) {
        errors.invalid(format!("{here}.successThreshold"), &probe["successThreshold"], "must be 1");
    }
    let grace = &probe["terminationGracePeriodSeconds"];
    if grace.as_i64().is_some_and(|n| n <= 0) {
        errors.invalid(format!("{here}.terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

fn handler(value: &Value, here: &str, kinds: &[&str], errors: &mut Errors) {
    let mut there = kinds.iter().filter(|kind| !value[**kind].is_null());
    let Some(kind) = there.next() else { return errors.required(here, "must specify a handler type") };
    for second in there {
        errors.forbidden(format!("{here}.{second}"), "may not specify more than 1 handler type");
    }
    let (here, handler) = (format!("{here}.{kind}"), &value[*kind]);
    match *kind {
        "exec" if list(handler, "command").next().is_none() => errors.required(format!("{here}.command"), ""),
        "httpGet" => {
            if text(handler, "path").is_empty() {
                errors.required(format!("{here}.path"), "");
            }
            names::port_or_name(&format!("{here}.port"), &handler["port"], errors);
            errors.one_of(format!("{here}.scheme"), &handler["scheme"], &["HTTP", "HTTPS"]);
        }
        "tcpSocket" => names::port_or_name(&format!("{here}.port"), &handler["port"], errors),
        "grpc" if !names::is_port(&handler["port"]) => errors.invalid(format!("{here}.port"), &handler["port"], PORT),
        _ => {}
    }
}
