//! What is refused in a CustomResourceDefinition, in upstream's words. Pure.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_apimachinery::schema::structural;

use super::storage_version;
use crate::{
    apiserver::validation::{
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::conditions,
};

/// Validates a definition.
pub(super) fn validate(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    let (group, own) = (text(spec, "group"), &spec["names"]);
    let expected = format!("{}.{group}", text(own, "plural"));
    if text(&object["metadata"], "name") != expected {
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
    if spec["preserveUnknownFields"] == true {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid("spec.preserveUnknownFields", &spec["preserveUnknownFields"], why);
    }
    validate_names(own, errors);
    validate_versions(spec, errors);
    validate_conversion(&spec["conversion"], errors);
    validate_stored_versions(object, errors);
    validate_approval(object, errors);
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
}

fn validate_names(own: &Value, errors: &mut Errors) {
    let mut label = |field: &str, shown: &str, checked: &str| {
        let path = format!("spec.names.{field}");
        if shown.is_empty() {
            errors.required(path, "");
        } else if let Some(why) = names::dns_1035_label(checked) {
            let mixed = format!("may have mixed case, but should otherwise match: {why}");
            errors.invalid_text(path, shown, if checked == shown { &why } else { &mixed });
        }
    };
    label("plural", text(own, "plural"), text(own, "plural"));
    label("singular", text(own, "singular"), text(own, "singular"));
    label("kind", text(own, "kind"), &text(own, "kind").to_lowercase());
    label("listKind", text(own, "listKind"), &text(own, "listKind").to_lowercase());
    if !text(own, "kind").is_empty() && text(own, "kind") == text(own, "listKind") {
        errors.invalid("spec.names.listKind", &own["listKind"], "kind and listKind may not be the same");
    }
    for field in ["shortNames", "categories"] {
        for (at, name) in list(own, field) {
            let name = name.as_str().unwrap_or_default();
            errors.unless(format!("spec.names.{field}[{at}]"), name, names::dns_1035_label(name));
        }
    }
}

fn validate_versions(spec: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    let mut stored = 0;
    for (at, version) in list(spec, "versions") {
        let here = format!("spec.versions[{at}]");
        let name = text(version, "name");
        if !seen.insert(name) {
            errors.invalid("spec.versions", &spec["versions"], "must contain unique version names");
        }
        errors.unless(format!("{here}.name"), name, names::dns_1035_label(name));
        stored += usize::from(version["storage"] == true);
        if version["deprecationWarning"].is_string() && version["deprecated"] != true {
            let why = "can only be set for deprecated versions";
            errors.invalid(format!("{here}.deprecationWarning"), &version["deprecationWarning"], why);
        }
        let status = version["subresources"]["status"].is_object();
        match &version["schema"]["openAPIV3Schema"] {
            Value::Null => errors.required(format!("{here}.schema.openAPIV3Schema"), "schemas are required"),
            schema => {
                errors.0.extend(structural::validate(schema, &format!("{here}.schema.openAPIV3Schema"), status));
            }
        }
        validate_scale(&version["subresources"]["scale"], &format!("{here}.subresources.scale"), errors);
        validate_columns(version, &here, errors);
        validate_selectable_fields(version, &here, errors);
    }
    if stored != 1 {
        errors.invalid("spec.versions", &spec["versions"], "must have exactly one version marked as storage version");
    }
}

fn validate_scale(scale: &Value, here: &str, errors: &mut Errors) {
    if !scale.is_object() {
        return;
    }
    let mut path = |field: &str, roots: &[&str], required: bool| {
        let (at, value) = (format!("{here}.{field}"), text(scale, field));
        if value.is_empty() {
            if required {
                errors.required(at, "");
            }
        } else if value.contains(['[', ']']) || !value.starts_with('.') || value.split('.').skip(1).any(str::is_empty) {
            errors.invalid_text(at, value, "should be a simple json path under the dot notation");
        } else if !roots.iter().any(|root| value.starts_with(root)) {
            let roots = roots.join(" or ");
            errors.invalid_text(at, value, &format!("should be a json path under {}", roots.trim_end_matches('.')));
        }
    };
    path("specReplicasPath", &[".spec."], true);
    path("statusReplicasPath", &[".status."], true);
    path("labelSelectorPath", &[".spec.", ".status."], false);
}

fn validate_columns(version: &Value, here: &str, errors: &mut Errors) {
    for (at, column) in list(version, "additionalPrinterColumns") {
        let here = format!("{here}.additionalPrinterColumns[{at}]");
        if text(column, "name").is_empty() {
            errors.required(format!("{here}.name"), "");
        }
        let kinds = ["boolean", "date", "integer", "number", "string"];
        errors.one_of(format!("{here}.type"), &column["type"], &kinds);
        let path = text(column, "jsonPath");
        if path.is_empty() {
            errors.required(format!("{here}.jsonPath"), "");
        } else if !path.starts_with('.') {
            errors.invalid_text(format!("{here}.jsonPath"), path, "should be a simple json path starting with .");
        }
    }
}

/// Upstream's limit.
const MAX_SELECTABLE_FIELDS: usize = 8;

fn validate_selectable_fields(version: &Value, here: &str, errors: &mut Errors) {
    let here = format!("{here}.selectableFields");
    let count = list(version, "selectableFields").count();
    if count > MAX_SELECTABLE_FIELDS {
        errors.too_many(&here, count, MAX_SELECTABLE_FIELDS);
    }
    let mut seen = BTreeSet::new();
    for (at, field) in list(version, "selectableFields") {
        let (here, path) = (format!("{here}[{at}].jsonPath"), text(field, "jsonPath"));
        if path.is_empty() {
            errors.required(here, "");
        } else if !path.starts_with('.') || path.contains(['[', ']']) {
            errors.invalid_text(here, path, "must be a simple json path to a scalar field");
        } else if path == ".metadata" || path.starts_with(".metadata.") {
            errors.invalid_text(here, path, "must not point to fields in metadata");
        } else if !seen.insert(path) {
            errors.duplicate(here, &field["jsonPath"]);
        } else if !is_scalar(&version["schema"]["openAPIV3Schema"], path) {
            let why = "must point to an existing field of type string, boolean or integer";
            errors.invalid_text(here, path, why);
        }
    }
}

/// Whether a path leads to a field that can be selected.
fn is_scalar(schema: &Value, path: &str) -> bool {
    let found = path.trim_start_matches('.').split('.').fold(schema, |schema, field| &schema["properties"][field]);
    matches!(text(found, "type"), "string" | "boolean" | "integer")
}

fn validate_conversion(conversion: &Value, errors: &mut Errors) {
    errors.one_of("spec.conversion.strategy", &conversion["strategy"], &["None", "Webhook"]);
    let webhook = &conversion["webhook"];
    if conversion["strategy"] != "Webhook" {
        if webhook.is_object() {
            errors.forbidden("spec.conversion.webhook", "should not be set when strategy is not set to Webhook");
        }
        return;
    }
    let config = &webhook["clientConfig"];
    if !config.is_object() {
        errors.required("spec.conversion.webhookClientConfig", "required when strategy is set to Webhook");
    } else if config["url"].is_string() == config["service"].is_object() {
        errors.required("spec.conversion.webhook.clientConfig", "exactly one of url or service is required");
    }
    let versions: Vec<&str> =
        list(webhook, "conversionReviewVersions").filter_map(|(_, version)| version.as_str()).collect();
    if !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let field = "spec.conversion.conversionReviewVersions";
        errors.invalid(field, &webhook["conversionReviewVersions"], "must include at least one of v1, v1beta1");
    }
}

/// Objects may be stored in no version that is not defined, and are in the storage version.
pub(super) fn validate_stored_versions(object: &Value, errors: &mut Errors) {
    let here = "status.storedVersions";
    let stored: Vec<&str> = list(&object["status"], "storedVersions").filter_map(|(_, v)| v.as_str()).collect();
    let storage = storage_version(object);
    if stored.is_empty() {
        return errors.invalid(here, &object["status"]["storedVersions"], "must have at least one stored version");
    }
    if !stored.contains(&storage) {
        let why = format!("must have the storage version {storage}");
        errors.invalid(here, &object["status"]["storedVersions"], &why);
    }
    for (at, version) in stored.iter().enumerate() {
        if !list(&object["spec"], "versions").any(|(_, v)| text(v, "name") == *version) {
            let why = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
            );
            errors.invalid_text(format!("{here}[{at}]"), version, &why);
        }
    }
}

/// Groups of Kubernetes need an annotation that says who has approved the API.
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
