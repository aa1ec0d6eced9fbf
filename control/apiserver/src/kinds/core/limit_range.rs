//! LimitRange. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::{
    objects::{
        pod_defaults::{child, items},
        resource_names::{is_extended, is_native},
    },
    quantity::Quantity,
};

use crate::{
    apiserver::{
        Strategy,
        generate::new_uid,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{field::Field, field_path::FieldPath, resource_names as resources, tables::created_at},
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "limitranges", "LimitRange", LimitRange);
    resource.short_names = vec!["limits".into()];
    resource.create_on_update = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "LimitRange"));
    v1.table = created_at();
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct LimitRange;

impl Strategy for LimitRange {
    /// One without a name gets one.
    fn prepare_for_create(&self, object: &mut Value) {
        if object["metadata"]["name"].as_str().is_none_or(str::is_empty)
            && let Ok(uid) = new_uid()
        {
            object["metadata"]["name"] = json!(uid);
        }
    }

    fn default(&self, object: &mut Map<String, Value>) {
        for limit in items(child(object, "spec"), "limits") {
            if limit.get("type").is_some_and(|kind| kind == "Container") {
                default_container(limit);
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for limit in Field::root(object).below("spec.limits").items() {
            let kind = limit.at("type");
            validate_type(&kind, errors);
            if !seen.insert(kind.text()) {
                kind.duplicate(errors);
            }
            validate_limit(&limit, errors);
        }
    }
}

/// Limits default to the maximum, requests to the limit and else to the minimum.
fn default_container(limit: &mut Map<String, Value>) {
    let fill = |limit: &mut Map<String, Value>, from: &str, to: &str| {
        let amounts = limit.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
        if limit.get(to).is_none_or(Value::is_null) {
            limit.insert(to.to_owned(), json!({}));
        }
        let known = child(limit, to);
        for (resource, amount) in amounts {
            known.entry(resource).or_insert(amount);
        }
    };
    fill(limit, "max", "default");
    fill(limit, "default", "defaultRequest");
    fill(limit, "min", "defaultRequest");
    for field in ["default", "defaultRequest"] {
        if limit.get(field).and_then(Value::as_object).is_some_and(Map::is_empty) {
            limit.remove(field);
        }
    }
}

fn validate_type(kind: &Field<'_>, errors: &mut Errors) {
    let name = kind.text();
    if let Some(why) = names::qualified(name) {
        return errors.invalid_text(&kind.path, name, &why);
    }
    if !name.contains('/') && !matches!(name, "Pod" | "Container" | "PersistentVolumeClaim") {
        kind.invalid("must be a standard limit type or fully qualified", errors);
    }
}

fn validate_limit(limit: &Field<'_>, errors: &mut Errors) {
    let kind = limit.at("type").text();
    let mut all: BTreeSet<&str> = BTreeSet::new();
    let mut add = |field: &'static str, errors: &mut Errors| {
        for (resource, entry) in limit.at(field).entries() {
            validate_name(kind, resource, &entry.path, errors);
            all.insert(resource);
        }
    };
    add("max", errors);
    add("min", errors);
    if kind == "Pod" {
        for field in ["default", "defaultRequest"].map(|field| limit.at(field)).iter().filter(|field| !field.is_empty())
        {
            field.forbidden("may not be specified when `type` is 'Pod'", errors);
        }
    } else {
        add("default", errors);
        add("defaultRequest", errors);
    }
    if kind == "PersistentVolumeClaim"
        && !["min", "max"].iter().any(|field| limit.value[field].get("storage").is_some())
    {
        limit
            .at("limits")
            .required("either minimum or maximum storage value is required, but neither was provided", errors);
    }
    add("maxLimitRequestRatio", errors);
    for resource in all {
        compare(limit, resource, errors);
    }
}

fn validate_name(kind: &str, resource: &str, path: &FieldPath, errors: &mut Errors) {
    if let Some(why) = names::qualified(resource) {
        errors.invalid_text(path, resource, &why);
    } else if !resource.contains('/') && !resources::is_standard(resource) {
        errors.invalid_text(path, resource, "must be a standard resource type or fully qualified");
    }
    if !matches!(kind, "Pod" | "Container") {
        return;
    }
    if !resource.contains('/') && !resources::is_of_containers(resource) {
        errors.invalid_text(path, resource, "must be a standard resource for containers");
    } else if !is_native(resource) && !is_extended(resource) {
        errors.invalid_text(path, resource, "doesn't follow extended resource name standard");
    }
}

/// Refuses amounts of one resource that contradict each other.
fn compare(limit: &Field<'_>, resource: &str, errors: &mut Errors) {
    let amount = |field: &str| limit.value[field][resource].as_str().and_then(|text| text.parse::<Quantity>().ok());
    let (least, most) = (amount("min"), amount("max"));
    let (default, request, ratio) = (amount("default"), amount("defaultRequest"), amount("maxLimitRequestRatio"));
    let refuse = |field: &str, shown: Quantity, why: &str, errors: &mut Errors| {
        errors.invalid_text(format!("{}.{field}[{resource}]", limit.path), &shown.to_string(), why);
    };
    // A pair that is out of order: the reported field, and the names of both.
    let pairs = [
        ("min", least, "min", most, "max", least),
        ("defaultRequest", least, "min", request, "default request", request),
        ("defaultRequest", request, "default request", most, "max", request),
        ("defaultRequest", request, "default request", default, "default limit", request),
        ("default", least, "min", default, "default", least),
        ("default", default, "default", most, "max", most),
    ];
    for (field, low, low_name, high, high_name, shown) in pairs {
        if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
            && low > high
        {
            let why = format!("{low_name} value {low} is greater than {high_name} value {high}");
            refuse(field, shown, &why, errors);
        }
    }
    if let Some(ratio) = ratio {
        if ratio < Quantity::from_units(1) {
            refuse("maxLimitRequestRatio", ratio, &format!("ratio {ratio} is less than 1"), errors);
        }
        if let (Some(least), Some(most)) = (least.filter(|q| !q.is_zero()), most) {
            let limit = most.milli() as f64 / least.milli() as f64;
            if ratio.milli() as f64 / 1000.0 > limit {
                let why = format!("ratio {ratio} is greater than max/min = {limit:.6}");
                refuse("maxLimitRequestRatio", ratio, &why, errors);
            }
        }
    }
    if let (Some(default), Some(request)) = (default, request)
        && !resources::is_overcommittable(resource)
        && default != request
    {
        let why = format!("default value {default} must equal to defaultRequest value {request} in {resource}");
        refuse("defaultRequest", request, &why, errors);
    }
}
