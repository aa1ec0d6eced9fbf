//! Profiles of AppArmor and seccomp: fields, and the annotations that were there before them.

use serde_json::Value;

use super::{CONTAINER_LISTS, containers, volume::validate_local_descending_path};
use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
const MAX_PROFILE_BYTES: usize = 4095;

fn validate_type(profile: &Field<'_>, why: &str, errors: &mut Errors) {
    let kind = profile.at("type");
    if kind.is_empty() {
        kind.required(why, errors);
    } else {
        kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"], errors);
    }
}

/// Validates a profile of seccomp.
pub(super) fn validate_seccomp(profile: &Field<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    validate_type(profile, "type is required when seccompProfile is set", errors);
    let file = profile.at("localhostProfile");
    match (profile.at("type").text() == "Localhost", file.is_set()) {
        (true, false) => file.required("must be set when seccomp type is Localhost", errors),
        (true, true) => validate_local_descending_path(&file.path, file.text(), errors),
        (false, true) => {
            let shown = profile.internal(&[("Type", "type"), ("LocalhostProfile", "localhostProfile")]);
            file.invalid_as(&shown, "can only be set when seccomp type is Localhost", errors);
        }
        (false, false) => {}
    }
}

/// Validates a profile of AppArmor.
pub(super) fn validate_app_armor(profile: &Field<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let name = profile.at("localhostProfile");
    match profile.at("type").text() {
        "Localhost" => {
            if name.text().trim() != name.text() {
                name.invalid("must not be padded with whitespace", errors);
            } else if name.is_empty() {
                name.required("must be set when AppArmor type is Localhost", errors);
            }
            name.max_bytes(MAX_PROFILE_BYTES, errors);
        }
        "RuntimeDefault" | "Unconfined" if name.is_set() => {
            name.invalid("can only be set when AppArmor type is Localhost", errors);
        }
        _ => validate_type(profile, "type is required when appArmorProfile is set", errors),
    }
}

/// Validates the annotations of a pod.
pub(crate) fn validate_annotations(annotations: &Field<'_>, spec: &Field<'_>, errors: &mut Errors) {
    for (key, value) in annotations.entries() {
        let path = format!("{}.{key}", annotations.path);
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP) {
            match value.text() {
                "runtime/default" | "docker/default" | "unconfined" => {}
                profile => match profile.strip_prefix(LOCALHOST) {
                    Some(file) => validate_local_descending_path(&path, file, errors),
                    None => errors.invalid_text(path, profile, "must be a valid seccomp profile"),
                },
            }
        }
    }
    for (key, value) in annotations.entries() {
        let Some(name) = key.strip_prefix(APP_ARMOR) else { continue };
        let profile = value.text();
        if !containers(spec).any(|container| container.at("name").text() == name) {
            errors.invalid_text(&value.path, name, "container not found");
        }
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with(LOCALHOST) {
            errors.invalid_text(value.path, profile, &format!("invalid AppArmor profile name: {profile:?}"));
        }
    }
}

/// Refuses changes of the annotations of AppArmor.
pub(crate) fn validate_annotations_update(new: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    for (key, was) in old.entries().filter(|(key, _)| key.starts_with(APP_ARMOR)) {
        if new.value[key] != *was.value {
            errors.forbidden(format!("{}[{key}]", new.path), "may not remove or update AppArmor annotations");
        }
    }
    for (_, is) in new.entries().filter(|(key, _)| key.starts_with(APP_ARMOR) && old.value[*key].is_null()) {
        is.forbidden("may not add AppArmor annotations", errors);
    }
}

/// Refuses fields that say something else than the annotations.
pub(crate) fn validate_match(annotations: &Value, spec: &Field<'_>, errors: &mut Errors) {
    let of_pod = spec.at("securityContext");
    matches("seccomp", &annotations[SECCOMP_OF_POD], &of_pod.at("seccompProfile"), errors);
    for container in containers(spec) {
        let name = container.at("name").text();
        let context = container.at("securityContext");
        matches("seccomp", &annotations[format!("{SECCOMP}{name}")], &context.at("seccompProfile"), errors);
        let own = context.at("appArmorProfile");
        let value = if own.is_set() { own.value } else { of_pod.at("appArmorProfile").value };
        matches("apparmor", &annotations[format!("{APP_ARMOR}{name}")], &Field { value, path: own.path }, errors);
    }
}

fn matches(what: &str, annotation: &Value, profile: &Field<'_>, errors: &mut Errors) {
    let Some(annotation) = annotation.as_str().filter(|_| profile.is_set()) else { return };
    let (kind, file) = (profile.at("type"), profile.at("localhostProfile"));
    let named = annotation.strip_prefix(LOCALHOST);
    let fits = match kind.text() {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default"),
        "Localhost" => named.is_some(),
        _ => true,
    };
    if !fits {
        kind.forbidden(&format!("{what} type in annotation and field must match"), errors);
    } else if kind.text() == "Localhost" && named != file.value.as_str() {
        file.forbidden(&format!("{what} profile in annotation and field must match"), errors);
    }
}

/// The warning about an annotation of AppArmor.
fn deprecated(path: &str, key: &str) -> String {
    format!("{path}.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead")
}

/// Whether a container or pod has no profile of this kind.
fn lacks(of: &Field<'_>, profile: &'static str) -> bool {
    !of.at("securityContext").at(profile).is_set()
}

fn seccomp_gone(path: &str, key: &str) -> String {
    format!("{path}.annotations[{key}]: non-functional in v1.27+; use the \"seccompProfile\" field instead")
}

/// The warning about an annotation of a pod instead of its field, for the metadata at `path`.
pub(super) fn pod_warnings(annotations: &Value, spec: &Field<'_>, path: &str) -> Option<String> {
    let is_alone = !annotations[SECCOMP_OF_POD].is_null() && lacks(spec, "seccompProfile");
    is_alone.then(|| seccomp_gone(path, SECCOMP_OF_POD))
}

/// Warnings about annotations of a container instead of its fields. Those about AppArmor are issued when the
/// annotations are converted to fields: [`app_armor_of_annotations`].
pub(super) fn container_warnings(
    annotations: &Value,
    spec: &Field<'_>,
    container: &Field<'_>,
    path: &str,
    template: bool,
) -> Vec<String> {
    let is_set = |key: &str| !annotations[key].is_null();
    let name = container.at("name").text();
    let (seccomp, app_armor) = (format!("{SECCOMP}{name}"), format!("{APP_ARMOR}{name}"));
    let mut found = Vec::new();
    if is_set(&seccomp) && lacks(container, "seccompProfile") {
        found.push(seccomp_gone(path, &seccomp));
    }
    if template && is_set(&app_armor) && lacks(container, "appArmorProfile") && lacks(spec, "appArmorProfile") {
        found.push(deprecated(path, &app_armor));
    }
    found
}

/// The field that an annotation stands for.
fn field_of(annotation: &str) -> Option<Value> {
    let profile = match annotation {
        "runtime/default" => serde_json::json!({"type": "RuntimeDefault"}),
        "unconfined" => serde_json::json!({"type": "Unconfined"}),
        _ => serde_json::json!({"type": "Localhost", "localhostProfile": annotation.strip_prefix(LOCALHOST)?}),
    };
    let mut errors = Errors::default();
    validate_app_armor(&Field::root(&profile), &mut errors);
    errors.0.is_empty().then_some(profile)
}

/// Sets the AppArmor profiles that a new pod has as annotations alone (upstream: `applyAppArmorVersionSkew`); the warnings.
pub(crate) fn app_armor_of_annotations(pod: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod["spec"]["os"]["name"] == "windows" {
        return warnings;
    }
    let annotations = pod["metadata"]["annotations"].clone();
    let of_pod = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    for list in CONTAINER_LISTS {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let key = format!("{APP_ARMOR}{}", container["name"].as_str().unwrap_or_default());
            let Some(annotation) = annotations[&key].as_str() else { continue };
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            let field = field_of(annotation);
            if field.as_ref() == Some(&of_pod) {
                continue;
            }
            if let Some(field) = field {
                container["securityContext"]["appArmorProfile"] = field;
            }
            warnings.push(deprecated("metadata", &key));
        }
    }
    warnings
}
