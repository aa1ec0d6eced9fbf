//! The versions of a definition.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_apimachinery::schema::structural;
use windlass_cel::RuleChecks;

use super::selectable;
use crate::{
    apiserver::pipeline::validation::{
        Cause, FieldError,
        errors::{Errors, list, text},
        names,
    },
    kinds::types,
};

/// What all versions agree in, or null: upstream's internal form has it at the top of the spec alone.
pub(super) struct Agreed<'a> {
    schema: &'a Value,
    subresources: &'a Value,
    columns: &'a Value,
    selectable: &'a Value,
}

/// A field of a version, null where it says nothing.
fn field<'a>(version: &'a Value, name: &str) -> &'a Value {
    let value = &version[name];
    if value.as_array().is_some_and(Vec::is_empty) { &Value::Null } else { value }
}

/// The field that all versions agree in.
fn agreed_in<'a>(spec: &'a Value, name: &str) -> &'a Value {
    let mut all = list(spec, "versions").map(|(_, version)| field(version, name));
    let Some(first) = all.next() else { return &Value::Null };
    if all.all(|other| other == first) { first } else { &Value::Null }
}

impl<'a> Agreed<'a> {
    pub(super) fn of(spec: &'a Value) -> Self {
        Self {
            schema: agreed_in(spec, "schema"),
            subresources: agreed_in(spec, "subresources"),
            columns: agreed_in(spec, "additionalPrinterColumns"),
            selectable: agreed_in(spec, "selectableFields"),
        }
    }
}

/// The schema of a version, if there is such a version.
fn schema_of<'a>(spec: &'a Value, name: &str) -> Option<&'a Value> {
    list(spec, "versions")
        .map(|(_, version)| version)
        .find(|version| text(version, "name") == name)
        .map(|v| &v["schema"])
}

/// Whether a version is stored with its schema as it is: then no rule is refused for what it costs alone.
fn is_stored(spec: &Value, old: &Value, version: &Value) -> bool {
    let name = text(version, "name");
    schema_of(spec, name).is_some_and(|schema| schema_of(old, name) == Some(schema))
}

fn validate_schema(schema: &Value, path: &str, has_status: bool, is_stored: bool) -> Vec<FieldError> {
    let object_meta = types::schema("meta/v1.ObjectMeta");
    structural::validate(schema, path, has_status, &object_meta, &mut RuleChecks::new(is_stored))
}

/// Validates each version in what it does not share with all others.
pub(super) fn validate(spec: &Value, old: &Value, agreed: &Agreed<'_>, errors: &mut Errors) {
    if agreed.schema["openAPIV3Schema"].is_null() {
        for (at, _) in list(spec, "versions").filter(|(_, v)| v["schema"]["openAPIV3Schema"].is_null()) {
            errors.required(format!("spec.versions[{at}].schema.openAPIV3Schema"), "");
        }
    }
    let (mut seen, mut is_unique, mut stored) = (BTreeSet::new(), true, 0);
    for (at, version) in list(spec, "versions") {
        let (here, name) = (format!("spec.versions[{at}]"), text(version, "name"));
        is_unique &= seen.insert(name);
        stored += usize::from(version["storage"] == true);
        errors.unless(format!("{here}.name"), name, names::dns1035_label(name));
        validate_deprecation(version, &here, errors);
        let own = |name: &str, agreed: &Value| if agreed.is_null() { field(version, name) } else { &Value::Null };
        let schema = &own("schema", agreed.schema)["openAPIV3Schema"];
        let subresources = own("subresources", agreed.subresources);
        // Upstream looks for the status among what the version does not share.
        let has_status = version["subresources"]["status"].is_object();
        if schema.is_object() {
            let path = format!("{here}.schema.openAPIV3Schema");
            errors.0.extend(validate_schema(schema, &path, has_status, is_stored(spec, old, version)));
        }
        validate_scale(&subresources["scale"], &format!("{here}.subresources.scale"), errors);
        validate_columns(own("additionalPrinterColumns", agreed.columns), &here, errors);
        let fields = own("selectableFields", agreed.selectable);
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        selectable::validate(fields, schema, &format!("{here}.selectableFields"), why, errors);
    }
    if !is_unique {
        refuse_versions(spec, agreed, "must contain unique version names", errors);
    }
    if stored != 1 {
        refuse_versions(spec, agreed, "must have exactly one version marked as storage version", errors);
    }
    if let Some((_, first)) = list(spec, "versions").next() {
        let name = text(first, "name");
        if !name.is_empty() {
            errors.unless("spec.version", name, names::dns1035_label(name));
        }
    }
}

/// Validates what all versions agree in.
pub(super) fn validate_agreed(spec: &Value, old: &Value, agreed: &Agreed<'_>, errors: &mut Errors) {
    let schema = &agreed.schema["openAPIV3Schema"];
    if schema.is_object() {
        let has_status = list(spec, "versions").any(|(_, version)| version["subresources"]["status"].is_object());
        let first = list(spec, "versions").next().map_or(&Value::Null, |(_, version)| version);
        let is_stored = is_stored(spec, old, first);
        errors.0.extend(validate_schema(schema, "spec.validation.openAPIV3Schema", has_status, is_stored));
    }
    validate_scale(&agreed.subresources["scale"], "spec.subresources.scale", errors);
    validate_columns(agreed.columns, "spec", errors);
    let why = "may only be set when validations.schema is included";
    selectable::validate(agreed.selectable, schema, "spec.selectableFields", why, errors);
}

/// Refuses the versions as a whole, in upstream's internal form.
fn refuse_versions(spec: &Value, agreed: &Agreed<'_>, why: &str, errors: &mut Errors) {
    let shown = list(spec, "versions").map(|(_, version)| {
        let own = |name: &str, agreed: &Value| if agreed.is_null() { field(version, name) } else { &Value::Null };
        let values = [
            ("Name", &version["name"]),
            ("Served", &version["served"]),
            ("Storage", &version["storage"]),
            ("Deprecated", &json!(version["deprecated"] == true)),
            ("DeprecationWarning", &version["deprecationWarning"]),
            ("Schema", own("schema", agreed.schema)),
            ("Subresources", own("subresources", agreed.subresources)),
            ("AdditionalPrinterColumns", own("additionalPrinterColumns", agreed.columns)),
            ("SelectableFields", own("selectableFields", agreed.selectable)),
        ];
        let fields: Vec<String> = values.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
        format!("{{{}}}", fields.join(","))
    });
    let shown: Vec<String> = shown.collect();
    errors.push("spec.versions", Cause::Invalid, format!("Invalid value: [{}]: {why}", shown.join(",")));
}

/// Characters of a deprecation warning.
const MAX_WARNING_BYTES: usize = 256;

fn validate_deprecation(version: &Value, here: &str, errors: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut refuse = |why: &str| errors.invalid_text(format!("{here}.deprecationWarning"), warning, why);
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions");
    }
    if warning.len() > MAX_WARNING_BYTES {
        refuse(&format!("must be <= {MAX_WARNING_BYTES} characters long"));
    }
    if warning.is_empty() {
        refuse("must not be an empty string");
    }
    let odd = warning.char_indices().find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' '));
    if let Some((at, _)) = odd {
        refuse(&format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
}

fn validate_scale(scale: &Value, here: &str, errors: &mut Errors) {
    if !scale.is_object() {
        return;
    }
    let mut path = |field: &str, roots: &[&str], under: &str, required: bool| {
        let (at, value) = (format!("{here}.{field}"), text(scale, field));
        if value.is_empty() {
            if required {
                errors.required(at, "");
            }
        } else if !value.starts_with('.') {
            errors.invalid_text(at, value, "must be a simple json path starting with .");
        } else if !roots.iter().any(|root| value.starts_with(root)) {
            errors.invalid_text(at, value, &format!("should be a json path under {under}"));
        }
    };
    path("specReplicasPath", &[".spec."], ".spec", true);
    path("statusReplicasPath", &[".status."], ".status", true);
    path("labelSelectorPath", &[".spec.", ".status."], "either .spec or .status", false);
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

fn validate_columns(columns: &Value, here: &str, errors: &mut Errors) {
    for (at, column) in columns.as_array().into_iter().flatten().enumerate() {
        let here = format!("{here}.additionalPrinterColumns[{at}]");
        if text(column, "name").is_empty() {
            errors.required(format!("{here}.name"), "");
        }
        let (kind, format, path) = (text(column, "type"), text(column, "format"), text(column, "jsonPath"));
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        if kind.is_empty() {
            errors.required(format!("{here}.type"), &types);
        } else if !COLUMN_TYPES.contains(&kind) {
            errors.invalid_text(format!("{here}.type"), kind, &types);
        }
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.invalid_text(format!("{here}.format"), format, &why);
        }
        if path.is_empty() {
            errors.required(format!("{here}.JSONPath"), "");
        } else if !path.starts_with('.') {
            errors.invalid_text(format!("{here}.JSONPath"), path, "must be a simple json path starting with .");
        }
    }
}
