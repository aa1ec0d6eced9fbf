//! Variables of containers, and what they and volumes may take from their pod. Pure.

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::super::containers;
use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{field::Field, pod_template::volume::validate_no_back_steps},
};

const NO_SOURCE: &str =
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
const SEVERAL: &str = "may not have more than one field specified at a time";

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
/// Other fields that upstream knows, but does not allow.
const OTHER_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
/// What may be taken of resources, besides huge pages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTES: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";

/// Validates the variables of a container.
pub(super) fn validate(container: &Field<'_>, errors: &mut Errors) {
    for variable in container.at("env").items() {
        variable.at("name").named(names::variable, errors);
        let from = variable.at("valueFrom");
        if from.is_set() {
            validate_source(&from, variable.at("value").text(), errors);
        }
    }
    let all = container.at("envFrom");
    for from in all.items() {
        from.at("prefix").optionally_fits(names::variable, errors);
        let sources = ["configMapRef", "secretRef"].map(|kind| from.at(kind));
        let set: Vec<_> = sources.iter().filter(|source| source.is_set()).collect();
        set.iter().for_each(|source| named_object(&source.at("name"), errors));
        // Upstream reports the path of the list instead of its item's.
        match set.len() {
            0 => all.invalid_as("\"\"", "must specify one of: `configMapRef` or `secretRef`", errors),
            1 => {}
            _ => all.invalid_as("\"\"", SEVERAL, errors),
        }
    }
}

/// Refuses a name of an object that cannot be; one may end with a hyphen here, for generated names.
fn named_object(name: &Field<'_>, errors: &mut Errors) {
    if name.is_empty() {
        return name.required("", errors);
    }
    let masked = name.text().strip_suffix('-').filter(|rest| !rest.is_empty()).map(|rest| format!("{rest}a"));
    if let Some(why) = names::subdomain(masked.as_deref().unwrap_or(name.text())) {
        name.invalid(&why, errors);
    }
}

fn validate_source(from: &Field<'_>, value: &str, errors: &mut Errors) {
    let kinds = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let mut count = 0;
    for source in kinds.map(|kind| from.at(kind)).iter().filter(|source| source.is_set()) {
        count += 1;
        match source.path.name() {
            "fieldRef" => validate_field_reference(source, POD_FIELDS, errors),
            "resourceFieldRef" => validate_resource_reference(source, false, errors),
            "fileKeyRef" => file_key(source, errors),
            _ => {
                let name = source.at("name");
                // The empty name is allowed, for clients that always had it.
                errors.unless(&name.path, name.text(), names::subdomain(name.text()));
                source.at("key").named(names::config_key, errors);
            }
        }
    }
    if count == 0 {
        from.invalid_as("\"\"", NO_SOURCE, errors);
    } else if !value.is_empty() {
        from.invalid_as("\"\"", "may not be specified when `value` is not empty", errors);
    } else if count > 1 {
        from.invalid_as("\"\"", SEVERAL, errors);
    }
}

fn file_key(source: &Field<'_>, errors: &mut Errors) {
    source.at("key").named(names::variable, errors);
    source.at("volumeName").named(names::label, errors);
    let path = source.at("path");
    if path.is_empty() {
        path.required("", errors);
    }
    validate_no_back_steps(&path.path, path.text(), errors);
}

/// Validates a field of the pod that is taken, which is one of `allowed` or a label or annotation.
pub(in super::super) fn validate_field_reference(reference: &Field<'_>, allowed: &[&str], errors: &mut Errors) {
    let (version, field) = (reference.at("apiVersion"), reference.at("fieldPath"));
    let path = field.text();
    if version.is_empty() {
        return version.required("", errors);
    }
    if field.is_empty() {
        return field.required("", errors);
    }
    let mut unknown = |why: String| field.invalid(&format!("error converting fieldPath: {why}"), errors);
    if version.text() != "v1" {
        return unknown(format!("unsupported pod version: {}", version.text()));
    }
    let keyed = path.strip_suffix("']").and_then(|rest| rest.split_once("['")).filter(|(map, _)| !map.is_empty());
    match keyed {
        Some((map @ ("metadata.annotations" | "metadata.labels"), key)) => {
            // Annotations may have capital letters in their domains.
            let key = if map == "metadata.labels" { key.to_owned() } else { key.to_lowercase() };
            let problems = names::qualified_problems(&key);
            problems.iter().for_each(|why| errors.invalid_text(&reference.path, &key, why));
        }
        Some(_) => unknown(format!("field label does not support subscript: {path}")),
        None if path == "spec.host" && allowed.contains(&"spec.nodeName") => {}
        None if !POD_FIELDS.contains(&path) && !OTHER_FIELDS.contains(&path) && path != "spec.host" => {
            unknown(format!("field label not supported: {path}"));
        }
        None => field.one_of(allowed, errors),
    }
}

/// Validates an amount of a container that is taken; volumes say of which container.
pub(in super::super) fn validate_resource_reference(reference: &Field<'_>, volume: bool, errors: &mut Errors) {
    let (container, resource) = (reference.at("containerName"), reference.at("resource"));
    let of_huge_pages =
        ["requests.hugepages-", "limits.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    if volume && container.is_empty() {
        container.required("", errors);
    } else if resource.is_empty() {
        resource.required("", errors);
    } else if !of_huge_pages {
        resource.one_of(&RESOURCES, errors);
    }
    let divisor = match reference.value["divisor"].clone() {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    let Ok(divisor) = divisor.parse::<Quantity>() else { return };
    let (fine, what) = match resource.text() {
        "limits.cpu" | "requests.cpu" => ("1m and 1", "cpu"),
        "limits.memory" | "requests.memory" => (BYTES, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (BYTES, "local ephemeral storage"),
        _ if of_huge_pages => (BYTES, "hugepages"),
        _ => return,
    };
    let shown = divisor.to_string();
    if !divisor.is_zero() && !fine.split([',', ' ']).any(|word| word == shown) {
        // The value is the resource's, as upstream shows it.
        let why = format!("only divisor's values {fine} are supported with the {what} resource");
        errors.invalid_text(reference.at("divisor").path, resource.text(), &why);
    }
}

/// Refuses variables from files of volumes that the pod does not have.
pub(in super::super) fn validate_file_references(spec: &Field<'_>, errors: &mut Errors) {
    let volumes: Vec<_> = spec.at("volumes").items().collect();
    for variable in containers(spec).flat_map(|container| container.at("env").items()) {
        let reference = variable.below("valueFrom.fileKeyRef");
        if !reference.is_set() {
            continue;
        }
        let name = reference.at("volumeName");
        match volumes.iter().rfind(|volume| volume.at("name").text() == name.text()) {
            None => errors.not_found(&name.path, &Value::from(name.text())),
            Some(volume) if !volume.at("emptyDir").is_set() => {
                name.invalid("referenced volume must be of type emptyDir", errors);
            }
            Some(_) => {}
        }
    }
}
