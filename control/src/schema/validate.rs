//! What the API refuses, in upstream's words.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use windlass_kit::quantity::Quantity;

use crate::registry::Gvk;

/// The kind of a field error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Missing.
    Required,
    /// Not a good value.
    Invalid,
    /// None of the allowed ones.
    NotSupported,
    /// May not be set or changed.
    Forbidden,
    /// Stands twice.
    Duplicate,
    /// Refers to what is not there.
    NotFound,
}

impl Cause {
    /// The reason as the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
        }
    }
}

/// One problem with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path, such as `spec.containers[0].image`.
    pub field: String,
    /// Its kind.
    pub cause: Cause,
    /// What is told after the path.
    pub detail: String,
}

struct Errors(Vec<FieldError>);

impl Errors {
    fn push(&mut self, field: impl Into<String>, cause: Cause, detail: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), cause, detail: detail.into() });
    }

    fn required(&mut self, field: impl Into<String>, why: &str) {
        let detail = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        self.push(field, Cause::Required, detail);
    }

    fn invalid(&mut self, field: impl Into<String>, value: &Value, why: &str) {
        self.push(field, Cause::Invalid, format!("Invalid value: {value}: {why}"));
    }

    fn one_of(&mut self, field: impl Into<String>, value: &Value, allowed: &[&str]) {
        if value.as_str().is_some_and(|v| allowed.contains(&v)) {
            return;
        }
        let allowed: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
        self.push(field, Cause::NotSupported, format!("Unsupported value: {value}: supported values: {}", allowed.join(", ")));
    }

    fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.push(field, Cause::Duplicate, format!("Duplicate value: {value}"));
    }
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

fn is_label_value(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    text.len() <= 63 && text.bytes().all(fine) && ends(text.as_bytes().first()) && ends(text.as_bytes().last())
}

fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_subdomain)
}

/// Checks a new object.
#[must_use]
pub fn validate_create(gvk: &Gvk, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors(Vec::new());
    metadata(gvk, &object["metadata"], "metadata", &mut errors);
    match gvk.kind {
        "Pod" => pod_spec(&object["spec"], "spec", false, &mut errors),
        "ReplicationController" => replication_controller(&object["spec"], &mut errors),
        "Service" => service(&object["spec"], &mut errors),
        "ConfigMap" | "Secret" => data_keys(gvk, object, &mut errors),
        _ => {}
    }
    errors.0
}

/// Checks a change of an object.
#[must_use]
pub fn validate_update(gvk: &Gvk, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors(validate_create(gvk, new));
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if new["metadata"][field] != old["metadata"][field] {
            errors.invalid(format!("metadata.{field}"), &new["metadata"][field], "field is immutable");
        }
    }
    match gvk.kind {
        "Pod" => pod_update(new, old, &mut errors),
        "Service" => {
            let (was, is) = (&old["spec"]["clusterIP"], &new["spec"]["clusterIP"]);
            let named = |v: &Value| v.as_str().is_some_and(|t| !t.is_empty());
            if named(was) && was != is && new["spec"]["type"] != "ExternalName" && old["spec"]["type"] != "ExternalName" {
                errors.invalid("spec.clusterIPs[0]", is, "may not change once set");
            }
        }
        "ConfigMap" | "Secret" => {
            if old["immutable"] == true {
                for field in ["data", "binaryData"] {
                    if old[field] != new[field] {
                        errors.push(field, Cause::Forbidden, "Forbidden: field is immutable when `immutable` is set");
                    }
                }
                if new["immutable"] != true {
                    errors.push("immutable", Cause::Forbidden, "Forbidden: field is immutable when `immutable` is set");
                }
            }
            if gvk.kind == "Secret" && old["type"] != new["type"] {
                errors.invalid("type", &new["type"], "field is immutable");
            }
        }
        _ => {}
    }
    errors.0
}

fn metadata(gvk: &Gvk, metadata: &Value, path: &str, errors: &mut Errors) {
    let name = &metadata["name"];
    match name.as_str() {
        None | Some("") => errors.required(format!("{path}.name"), "name or generateName is required"),
        Some(text) => {
            let label = matches!(gvk.kind, "Namespace" | "Service");
            if label && !is_label(text) {
                errors.invalid(format!("{path}.name"), name, LABEL);
            } else if !is_subdomain(text) && gvk.kind != "Event" {
                errors.invalid(format!("{path}.name"), name, SUBDOMAIN);
            }
        }
    }
    labels(&metadata["labels"], &format!("{path}.labels"), errors);
    let mut total = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        if !is_qualified(&key.to_lowercase()) {
            errors.invalid(format!("{path}.annotations"), &Value::String(key.clone()), QUALIFIED);
        }
    }
    if total > 256 * 1024 {
        errors.push(format!("{path}.annotations"), Cause::Invalid, "Too long: may not be more than 262144 bytes");
    }
}

fn labels(map: &Value, path: &str, errors: &mut Errors) {
    for (key, value) in map.as_object().into_iter().flatten() {
        if !is_qualified(key) {
            errors.invalid(path, &Value::String(key.clone()), QUALIFIED);
        }
        if !value.as_str().is_some_and(is_label_value) {
            errors.invalid(path, value, LABEL_VALUE);
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (usize, &'a Value)> + use<'a> {
    value[key].as_array().into_iter().flatten().enumerate()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

fn pod_spec(spec: &Value, path: &str, template: bool, errors: &mut Errors) {
    if list(spec, "containers").next().is_none() {
        errors.required(format!("{path}.containers"), "");
    }
    if !template {
        errors.one_of(format!("{path}.restartPolicy"), &spec["restartPolicy"], &["Always", "OnFailure", "Never"]);
    }
    errors.one_of(format!("{path}.dnsPolicy"), &spec["dnsPolicy"], &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    let mut volumes = BTreeSet::new();
    for (at, volume) in list(spec, "volumes") {
        let here = format!("{path}.volumes[{at}]");
        let name = text(volume, "name");
        if !is_label(name) {
            errors.invalid(format!("{here}.name"), &volume["name"], LABEL);
        }
        if !volumes.insert(name) {
            errors.duplicate(format!("{here}.name"), &volume["name"]);
        }
        let sources = volume.as_object().map_or(0, |v| v.iter().filter(|(k, v)| *k != "name" && !v.is_null()).count());
        if sources > 1 {
            errors.push(&here, Cause::Forbidden, "Forbidden: may not specify more than 1 volume type");
        }
        if let Some(path) = volume.get("hostPath") {
            if text(path, "path").is_empty() {
                errors.required(format!("{here}.hostPath.path"), "");
            }
        }
    }
    let (mut names, mut host_ports) = (BTreeSet::new(), BTreeSet::new());
    for key in ["initContainers", "containers"] {
        for (at, container) in list(spec, key) {
            let here = format!("{path}.{key}[{at}]");
            let name = text(container, "name");
            if name.is_empty() {
                errors.required(format!("{here}.name"), "");
            } else if !is_label(name) {
                errors.invalid(format!("{here}.name"), &container["name"], LABEL);
            } else if !names.insert(name) {
                errors.duplicate(format!("{here}.name"), &container["name"]);
            }
            container_fields(container, &here, &volumes, &mut host_ports, errors);
        }
    }
}

fn container_fields<'a>(
    container: &'a Value,
    here: &str,
    volumes: &BTreeSet<&str>,
    host_ports: &mut BTreeSet<(i64, &'a str, &'a str)>,
    errors: &mut Errors,
) {
    if text(container, "image").trim().is_empty() {
        errors.required(format!("{here}.image"), "");
    }
    errors.one_of(format!("{here}.imagePullPolicy"), &container["imagePullPolicy"], &["Always", "IfNotPresent", "Never"]);
    for (at, port) in list(container, "ports") {
        let here = format!("{here}.ports[{at}]");
        for (key, required) in [("containerPort", true), ("hostPort", false)] {
            match port[key].as_i64() {
                Some(1..=65535) => {}
                Some(0) | None if !required => {}
                None => errors.required(format!("{here}.{key}"), ""),
                Some(_) => errors.invalid(format!("{here}.{key}"), &port[key], "must be between 1 and 65535, inclusive"),
            }
        }
        errors.one_of(format!("{here}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]);
        if let Some(number) = port["hostPort"].as_i64().filter(|p| *p > 0) {
            if !host_ports.insert((number, text(port, "protocol"), text(port, "hostIP"))) {
                errors.duplicate(format!("{here}.hostPort"), &port["hostPort"]);
            }
        }
    }
    for (at, variable) in list(container, "env") {
        let name = text(variable, "name");
        if name.is_empty() {
            errors.required(format!("{here}.env[{at}].name"), "");
        } else if !name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
            errors.invalid(format!("{here}.env[{at}].name"), &variable["name"], "a valid environment variable name must consist only of printable ASCII characters other than '='");
        }
        if !text(variable, "value").is_empty() && variable["valueFrom"].is_object() {
            errors.invalid(format!("{here}.env[{at}].valueFrom"), &Value::String(String::new()), "may not be specified when `value` is not empty");
        }
    }
    let mut paths = BTreeSet::new();
    for (at, mount) in list(container, "volumeMounts") {
        let here = format!("{here}.volumeMounts[{at}]");
        if !volumes.contains(text(mount, "name")) {
            errors.push(format!("{here}.name"), Cause::NotFound, format!("Not found: {}", mount["name"]));
        }
        if text(mount, "mountPath").is_empty() {
            errors.required(format!("{here}.mountPath"), "");
        } else if !paths.insert(text(mount, "mountPath")) {
            errors.invalid(format!("{here}.mountPath"), &mount["mountPath"], "must be unique");
        }
    }
    let resources = &container["resources"];
    for kind in ["limits", "requests"] {
        for (resource, amount) in resources[kind].as_object().into_iter().flatten() {
            let here = format!("{here}.resources.{kind}[{resource}]");
            match quantity(amount) {
                None => errors.invalid(here, amount, "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
                Some(q) if q.is_negative() => errors.invalid(here, amount, "must be greater than or equal to 0"),
                Some(q) => {
                    let limit = resources["limits"].get(resource).and_then(quantity);
                    if let Some(limit) = limit.filter(|l| kind == "requests" && q > *l) {
                        let why = format!("must be less than or equal to {resource} limit of {limit}");
                        errors.invalid(format!("{}.requests", here.split(".requests").next().unwrap_or("")), amount, &why);
                    }
                }
            }
        }
    }
    for (probe, single) in [("livenessProbe", true), ("startupProbe", true), ("readinessProbe", false)] {
        if single && container[probe]["successThreshold"].as_i64().is_some_and(|n| n != 1) {
            errors.invalid(format!("{here}.{probe}.successThreshold"), &container[probe]["successThreshold"], "must be 1");
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

/// What may change in a pod that lives: images, the deadline, added tolerations, the grace period.
fn pod_update(new: &Value, old: &Value, errors: &mut Errors) {
    const WORDS: &str = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let strip = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for key in ["containers", "initContainers"] {
            for container in spec[key].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                container.remove("image");
                // It follows the image's tag when nobody set it.
                container.remove("imagePullPolicy");
            }
        }
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("activeDeadlineSeconds");
            spec.remove("tolerations");
        }
        spec
    };
    let kept = list(&old["spec"], "tolerations").all(|(_, t)| list(&new["spec"], "tolerations").any(|(_, n)| n == t));
    if strip(new) != strip(old) || !kept {
        errors.push("spec", Cause::Forbidden, WORDS);
    }
}

fn replication_controller(spec: &Value, errors: &mut Errors) {
    if spec["replicas"].as_i64().is_some_and(|n| n < 0) {
        errors.invalid("spec.replicas", &spec["replicas"], "must be greater than or equal to 0");
    }
    let selector = spec["selector"].as_object().cloned().unwrap_or_else(Map::new);
    if selector.is_empty() {
        errors.required("spec.selector", "");
    }
    let template = &spec["template"];
    if !template.is_object() {
        errors.required("spec.template", "");
        return;
    }
    let carried = &template["metadata"]["labels"];
    if selector.iter().any(|(k, v)| carried.get(k) != Some(v)) {
        let shown = if carried.is_null() { Value::Object(Map::new()) } else { carried.clone() };
        errors.invalid("spec.template.metadata.labels", &shown, "`selector` does not match template `labels`");
    }
    labels(carried, "spec.template.metadata.labels", errors);
    errors.one_of("spec.template.spec.restartPolicy", &template["spec"]["restartPolicy"], &["Always"]);
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        errors.push("spec.template.spec.activeDeadlineSeconds", Cause::Forbidden, "Forbidden: activeDeadlineSeconds in ReplicationController is not Supported");
    }
    pod_spec(&template["spec"], "spec.template.spec", true, errors);
}

fn service(spec: &Value, errors: &mut Errors) {
    errors.one_of("spec.type", &spec["type"], &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    errors.one_of("spec.sessionAffinity", &spec["sessionAffinity"], &["ClientIP", "None"]);
    let headless = spec["clusterIP"] == "None";
    let external_name = spec["type"] == "ExternalName";
    if external_name && text(spec, "externalName").is_empty() {
        errors.required("spec.externalName", "");
    }
    let count = list(spec, "ports").count();
    if count == 0 && !headless && !external_name {
        errors.required("spec.ports", "");
    }
    if headless && matches!(text(spec, "type"), "NodePort" | "LoadBalancer") {
        errors.invalid("spec.clusterIPs[0]", &spec["clusterIP"], &format!("may not be set to 'None' for {} services", text(spec, "type")));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (at, port) in list(spec, "ports") {
        let here = format!("spec.ports[{at}]");
        if !matches!(port["port"].as_i64(), Some(1..=65535)) {
            errors.invalid(format!("{here}.port"), &port["port"], "must be between 1 and 65535, inclusive");
        }
        let name = text(port, "name");
        if count > 1 && name.is_empty() {
            errors.required(format!("{here}.name"), "");
        } else if !name.is_empty() && !is_label(name) {
            errors.invalid(format!("{here}.name"), &port["name"], LABEL);
        } else if !name.is_empty() && !names.insert(name) {
            errors.duplicate(format!("{here}.name"), &port["name"]);
        }
        errors.one_of(format!("{here}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]);
        if !numbers.insert((port["port"].as_i64(), text(port, "protocol"))) {
            errors.duplicate(&here, port);
        }
        let target_fine = match &port["targetPort"] {
            Value::Number(n) => matches!(n.as_i64(), Some(1..=65535)),
            Value::String(name) => is_label(name) && name.len() <= 15,
            _ => external_name,
        };
        if !target_fine {
            errors.invalid(format!("{here}.targetPort"), &port["targetPort"], "must be between 1 and 65535, inclusive");
        }
        if spec["type"] == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|p| p != 0) {
            errors.push(format!("{here}.nodePort"), Cause::Forbidden, "Forbidden: may not be used when `type` is 'ClusterIP'");
        }
    }
}

fn data_keys(gvk: &Gvk, object: &Value, errors: &mut Errors) {
    const WORDS: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let mut total = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            total += value.as_str().map_or(0, str::len);
            let fine = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
            if !fine || key == "." || key == ".." {
                errors.invalid(format!("{field}[{key}]"), &Value::String(key.clone()), WORDS);
            }
            if gvk.kind == "Secret" || field == "binaryData" {
                use base64::Engine as _;
                let decoded = value.as_str().map(|v| base64::engine::general_purpose::STANDARD.decode(v));
                if !matches!(decoded, Some(Ok(_))) {
                    // The value itself is a secret and not repeated.
                    errors.push(format!("{field}[{key}]"), Cause::Invalid, "Invalid value: must be base64");
                }
            }
        }
    }
    if total > 1024 * 1024 {
        errors.push("", Cause::Invalid, "Too long: may not be more than 1048576 bytes");
    }
}
