//! What is refused in a CustomResourceDefinition, in upstream's words and order. Pure.
//!
//! Upstream validates an internal form: what all versions agree in (schema, subresources, columns, selectable fields) stands
//! at the top of the spec there, which paths and some rules show. Upstream:
//! `apiextensions-apiserver/pkg/apis/apiextensions/validation/validation.go`.

mod conversion;
mod selectable;
mod versions;

use serde_json::Value;

pub(crate) use conversion::ca_bundle_fault;
use versions::Agreed;

use crate::{
    apiserver::pipeline::validation::{
        Cause,
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::conditions,
};

/// Validates a definition, as a new one or against the stored one.
pub(super) fn validate(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = &object["spec"];
    let (group, own) = (text(spec, "group"), &spec["names"]);
    let expected = format!("{}.{group}", text(own, "plural"));
    let prefix = text(&object["metadata"], "generateName");
    if !prefix.is_empty() && prefix != expected {
        errors.invalid_text("metadata.generateName", prefix, "must be spec.names.plural+\".\"+spec.group");
    }
    let name = text(&object["metadata"], "name");
    if !name.is_empty() && name != expected {
        errors.invalid("metadata.name", &object["metadata"]["name"], "must be spec.names.plural+\".\"+spec.group");
    }
    if group.is_empty() {
        errors.required("spec.group", "");
    } else if let Some(why) = names::subdomain(group) {
        errors.invalid_text("spec.group", group, &why);
    } else if !group.contains('.') {
        errors.invalid_text("spec.group", group, "should be a domain with at least one dot");
    }
    if text(spec, "scope").is_empty() {
        errors.required("spec.scope", "");
    } else {
        errors.one_of("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]);
    }
    let mut schemas =
        spec["versions"].as_array().into_iter().flatten().map(|version| &version["schema"]["openAPIV3Schema"]);
    if spec["preserveUnknownFields"] == true && schemas.any(has_defaults) {
        let why = "must be false in order to use defaults in the schema";
        errors.invalid("spec.preserveUnknownFields", &spec["preserveUnknownFields"], why);
    }
    let agreed = Agreed::of(spec);
    let old = old.map_or(&Value::Null, |old| &old["spec"]);
    versions::validate(spec, old, &agreed, errors);
    validate_names(own, errors);
    versions::validate_agreed(spec, old, &agreed, errors);
    if spec["preserveUnknownFields"] == true && spec["conversion"]["strategy"] != "None" {
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.invalid("spec.conversion.strategy", &spec["conversion"]["strategy"], why);
    }
    conversion::validate(&spec["conversion"], errors);
    validate_stored_versions(object, errors);
    validate_approval(object, errors);
    if spec["preserveUnknownFields"] == true {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid("spec.preserveUnknownFields", &spec["preserveUnknownFields"], why);
    }
}

/// Whether a schema has a default anywhere. What was decoded is not deep.
fn has_defaults(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "default" => !value.is_null(),
            "properties" | "patternProperties" | "definitions" => {
                value.as_object().is_some_and(|all| all.values().any(has_defaults))
            }
            "enum" | "example" => false,
            _ => has_defaults(value),
        }),
        Value::Array(all) => all.iter().any(has_defaults),
        _ => false,
    }
}

/// Validates what an update may not change.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let mut immutable = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (is, was) = (new.pointer(&pointer), old.pointer(&pointer));
        if is != was {
            errors.invalid(path, is.unwrap_or(&Value::Null), "field is immutable");
        }
    };
    if conditions::is_true(old, "Established") {
        immutable("spec.scope");
        immutable("spec.names.kind");
    }
    immutable("spec.group");
    immutable("spec.names.plural");
    // A definition that is established keeps a certificate that can be read.
    if conditions::is_true(old, "Established")
        && ca_bundle_fault(old).is_none()
        && let Some(why) = ca_bundle_fault(new)
    {
        let bundle = &new["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"];
        errors.invalid("spec.conversion.webhookClientConfig.caBundle", bundle, &why);
    }
}

fn validate_names(own: &Value, errors: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(own, field).is_empty() {
            errors.required(format!("spec.names.{field}"), "");
        }
    }
    let mut label = |field: &str, shown: &str, checked: &str| {
        if !shown.is_empty()
            && let Some(why) = names::dns1035_label(checked)
        {
            let mixed = format!("may have mixed case, but should otherwise match: {why}");
            let is_kind = field.to_lowercase().ends_with("kind");
            errors.invalid_text(format!("spec.names.{field}"), shown, if is_kind { &mixed } else { &why });
        }
    };
    label("plural", text(own, "plural"), text(own, "plural"));
    label("singular", text(own, "singular"), text(own, "singular"));
    label("kind", text(own, "kind"), &text(own, "kind").to_lowercase());
    label("listKind", text(own, "listKind"), &text(own, "listKind").to_lowercase());
    validate_labels(own, "shortNames", errors);
    if !text(own, "kind").is_empty() && text(own, "kind") == text(own, "listKind") {
        errors.invalid("spec.names.listKind", &own["listKind"], "kind and listKind may not be the same");
    }
    validate_labels(own, "categories", errors);
}

fn validate_labels(own: &Value, field: &str, errors: &mut Errors) {
    for (at, name) in list(own, field) {
        let name = name.as_str().unwrap_or_default();
        errors.unless(format!("spec.names.{field}[{at}]"), name, names::dns1035_label(name));
    }
}

/// Objects may be stored in no version that is not defined, and are in the storage version.
fn validate_stored_versions(object: &Value, errors: &mut Errors) {
    let here = "status.storedVersions";
    let stored: Vec<&str> = list(&object["status"], "storedVersions").filter_map(|(_, v)| v.as_str()).collect();
    if stored.is_empty() {
        let why = "Invalid value: null: must have at least one stored version";
        return errors.push(here, Cause::Invalid, why);
    }
    let mut left: Vec<(usize, &str)> = stored.into_iter().enumerate().collect();
    for (_, version) in list(&object["spec"], "versions") {
        let name = text(version, "name");
        // As upstream, a repeated name is not found the second time.
        if version["storage"] == true && !left.iter().any(|(_, stored)| *stored == name) {
            let why = format!("must have the storage version {name}");
            errors.invalid(here, &object["status"]["storedVersions"], &why);
        }
        left.retain(|(_, stored)| *stored != name);
    }
    for (at, version) in left {
        let why = format!(
            "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
        );
        errors.invalid_text(format!("{here}[{at}]"), version, &why);
    }
}

/// Groups of Kubernetes need an annotation with the API's approval.
fn validate_approval(object: &Value, errors: &mut Errors) {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let group = text(&object["spec"], "group");
    let of = |domain: &str| group == domain || group.ends_with(&format!(".{domain}"));
    if !of("k8s.io") && !of("kubernetes.io") {
        return;
    }
    let value = text(&object["metadata"]["annotations"], ANNOTATION);
    let field = format!("metadata.annotations[{ANNOTATION}]");
    if value.is_empty() {
        errors.required(field, "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111");
    } else if !["unapproved", "https://", "http://"].iter().any(|start| value.starts_with(start)) {
        let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
        errors.invalid_text(field, value, why);
    }
}
