//! HorizontalPodAutoscaler: one resource in three versions, stored as `v2`. Pure.
//!
//! `v2beta1` is gone from Kubernetes since 1.25, and served here for manifests that still have it.

mod cells;
mod conversion;
mod old_metrics;
mod validation;

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, set_pointer};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::errors::Errors,
        types::{Conversion, Definition, Resource, Subresource, Table, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, none_negative},
            tables::{AGE, column, named},
            tolerance,
        },
        types,
    },
};

const BETA_WARNING: &str = "autoscaling/v2beta1 HorizontalPodAutoscaler is deprecated in v1.22+, unavailable in v1.25+; use autoscaling/v2 HorizontalPodAutoscaler";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource =
        Resource::new("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", HorizontalPodAutoscaler);
    resource.short_names = vec!["hpa".into()];
    resource.categories = vec!["all".into()];
    let version = |name: &'static str, conversion| {
        let schema = types::built_in(&format!("autoscaling/{name}"), "HorizontalPodAutoscaler");
        let mut version = VersionSpec::new(name, schema);
        version.subresources = vec![Subresource::status()];
        version.table = table();
        version.conversion = conversion;
        version
    };
    let v1 = Conversion::Fn { from_storage: conversion::v1_of_v2, to_storage: conversion::v2_of_v1 };
    let beta = Conversion::Fn { from_storage: conversion::v2beta1_of_v2, to_storage: conversion::v2_of_v2beta1 };
    let mut v2beta1 = version("v2beta1", beta);
    v2beta1.deprecation_warning = Some(BETA_WARNING.to_owned());
    Definition::of(resource, vec![version("v2", Conversion::None), version("v1", v1), v2beta1], "v2")
}

fn table() -> Table {
    let columns = vec![
        column("Reference", "What it scales."),
        column("Targets", "Metrics, and what they should be."),
        column("MinPods", "The lowest number of pods."),
        column("MaxPods", "The highest number of pods."),
        column("Replicas", "Pods that there are."),
        AGE,
    ];
    named(columns, |object, age| cells::row(&in_v2(object), age))
}

/// An object of any version as `v2` has it.
fn in_v2(object: &Value) -> Cow<'_, Value> {
    let convert = match object["apiVersion"].as_str() {
        Some("autoscaling/v1") => conversion::v2_of_v1,
        Some("autoscaling/v2beta1") => conversion::v2_of_v2beta1,
        _ => return Cow::Borrowed(object),
    };
    let mut converted = object.clone();
    convert(&mut converted);
    Cow::Owned(converted)
}

#[derive(Debug)]
struct HorizontalPodAutoscaler;

impl Strategy for HorizontalPodAutoscaler {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::rule_of(error, &[("spec.scaleTargetRef.apiVersion", "version of the target")])
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let is_v2 = object.get("apiVersion").is_none_or(|version| version == "autoscaling/v2");
        let spec = child(object, "spec");
        set(spec, "minReplicas", json!(1));
        if is_v2 {
            default_v2(spec);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        object["status"] = json!({"currentReplicas": 0, "desiredReplicas": 0});
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        validation::validate(&Field::root(&in_v2(object)).at("spec"), errors);
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validation::validate_group(&Field::root(object).below("spec.scaleTargetRef"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        // What is stored without a group can still be changed.
        if validation::names_group(&Field::root(old).below("spec.scaleTargetRef")) {
            validation::validate_group(&Field::root(new).below("spec.scaleTargetRef"), errors);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        none_negative(&Field::root(new).at("status"), &["currentReplicas", "desiredReplicas"], errors);
    }
}

/// Sets the defaults of a `v2` spec.
fn default_v2(spec: &mut Map<String, Value>) {
    if spec.get("metrics").is_none_or(|metrics| metrics.as_array().is_none_or(Vec::is_empty)) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.insert("metrics".to_owned(), json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    let Some(behavior) = spec.get_mut("behavior").and_then(Value::as_object_mut) else { return };
    let up = child(behavior, "scaleUp");
    set(up, "stabilizationWindowSeconds", json!(0));
    set_pointer(up, "selectPolicy", json!("Max"));
    default_policies(
        up,
        json!([
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15},
        ]),
    );
    let down = child(behavior, "scaleDown");
    set_pointer(down, "selectPolicy", json!("Max"));
    default_policies(down, json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
}

fn default_policies(rules: &mut Map<String, Value>, policies: Value) {
    if rules.get("policies").is_none_or(Value::is_null) {
        rules.insert("policies".to_owned(), policies);
    }
}
