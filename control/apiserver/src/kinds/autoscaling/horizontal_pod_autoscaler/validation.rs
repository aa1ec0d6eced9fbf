//! Which specs are good.

use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{field::Field, selector},
};

const MAX_PERIOD_SECONDS: i64 = 1800;
const MAX_WINDOW_SECONDS: i64 = 3600;
const METRIC_TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

pub(super) fn validate(spec: &Field<'_>, errors: &mut Errors) {
    let (least, most) = (spec.at("minReplicas"), spec.at("maxReplicas"));
    if least.number().is_some_and(|n| n < 1) {
        least.invalid("must be greater than or equal to 1", errors);
    }
    match most.number().unwrap_or(0) {
        0 => most.required("must be set and greater than 0", errors),
        1.. => {}
        _ => most.invalid("must be greater than or equal to 1", errors),
    }
    if least.number().is_some_and(|least| most.number().unwrap_or(0) < least) {
        most.invalid("must be greater than or equal to `minReplicas`", errors);
    }
    reference(&spec.at("scaleTargetRef"), errors);
    for metric in spec.at("metrics").items() {
        validate_metric(&metric, errors);
    }
    let external = |metric: Field<'_>| matches!(metric.at("type").text(), "Object" | "External");
    if least.number() == Some(0) && !spec.at("metrics").items().any(external) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        spec.at("metrics").forbidden(why, errors);
    }
    let behavior = spec.at("behavior");
    for rules in ["scaleUp", "scaleDown"].map(|rules| behavior.at(rules)).iter().filter(|rules| rules.is_set()) {
        validate_rules(rules, errors);
    }
}

fn reference(target: &Field<'_>, errors: &mut Errors) {
    target.at("kind").named(names::path_segment, errors);
    target.at("name").named(names::path_segment, errors);
    let version = target.at("apiVersion");
    if version.text().matches('/').count() > 1 {
        version.invalid(&format!("unexpected GroupVersion string: {}", version.text()), errors);
    }
}

/// Whether a scale's target names an API group, or is of the one kind of the core group that has a scale.
pub(super) fn names_group(target: &Field<'_>) -> bool {
    let version = target.at("apiVersion");
    version.text().contains('/') && !version.text().starts_with('/')
        || target.at("kind").text() == "ReplicationController"
}

/// Upstream's `ValidateAPIVersion` without `AllowEmptyAPIGroup`.
pub(super) fn validate_group(target: &Field<'_>, errors: &mut Errors) {
    if !names_group(target) {
        let version = target.at("apiVersion");
        version.invalid_as(&format!("{:?}", version.text()), "apiVersion must specify API group", errors);
    }
}

fn validate_metric(metric: &Field<'_>, errors: &mut Errors) {
    let kind = metric.at("type");
    if kind.text().is_empty() {
        kind.required("must specify a metric source type", errors);
    }
    if !METRIC_TYPES.contains(&kind.text()) {
        // Upstream reports it twice.
        kind.one_of(&METRIC_TYPES, errors);
        kind.one_of(&METRIC_TYPES, errors);
    }
    let present: Vec<(&str, Field<'_>)> =
        SOURCES.iter().map(|(name, key)| (*name, metric.at(key))).filter(|(_, source)| source.is_set()).collect();
    if let Some((name, source)) = present.first() {
        validate_source(name, source, errors);
    }
    if let Some((_, key)) = SOURCES.iter().find(|(name, _)| *name == kind.text())
        && !metric.at(key).is_set()
    {
        metric.at(key).required("must populate information for the given metric source", errors);
    }
    if present.len() != 1 {
        for (_, source) in present.iter().filter(|(name, _)| *name != kind.text()) {
            source.forbidden("must populate the given metric source only", errors);
        }
    }
}

fn validate_source(name: &str, source: &Field<'_>, errors: &mut Errors) {
    match name {
        "Object" => {
            reference(&source.at("describedObject"), errors);
            identified(source, errors);
            amount(source, errors);
            neither(source, ("value", "averageValue"), "must set either a target value or averageValue", errors);
        }
        "External" => {
            identified(source, errors);
            amount(source, errors);
            neither(
                source,
                ("value", "averageValue"),
                "must set either a target value for metric or a per-pod target",
                errors,
            );
            let (value, average) = (source.below("target.value"), source.below("target.averageValue"));
            if value.is_set() && average.is_set() {
                value.forbidden("may not set both a target value for metric and a per-pod target", errors);
            }
        }
        "Pods" => {
            identified(source, errors);
            amount(source, errors);
            neither(source, ("averageValue", "averageValue"), "must specify a positive target averageValue", errors);
        }
        _ => of_resource(source, name == "ContainerResource", errors),
    }
}

/// Validates the name of a metric and the selector of its series.
fn identified(source: &Field<'_>, errors: &mut Errors) {
    let name = source.below("metric.name");
    if name.text().is_empty() {
        return name.required("must specify a metric name", errors);
    }
    name.fits(names::path_segment, errors);
    let selector = source.below("metric.selector");
    if selector.is_set() {
        selector::validate(&selector, errors);
    }
}

fn amount(source: &Field<'_>, errors: &mut Errors) {
    let target = source.at("target");
    let kind = target.at("type");
    match kind.text() {
        "Utilization" | "Value" | "AverageValue" => {}
        other => {
            if other.is_empty() {
                kind.required("must specify a metric target type", errors);
            }
            errors.invalid_text(&kind.path, other, "must be either Utilization, Value, or AverageValue");
        }
    }
    for value in ["value", "averageValue"].map(|key| target.at(key)) {
        if value.quantity().is_some_and(|amount| amount.is_zero() || amount.is_negative()) {
            value.invalid("must be positive", errors);
        }
    }
    let utilization = target.at("averageUtilization");
    if utilization.number().is_some_and(|percent| percent < 1) {
        utilization.invalid("must be greater than 0", errors);
    }
}

/// Refuses a target that has none of two fields; the second one is missing then.
fn neither(source: &Field<'_>, fields: (&'static str, &'static str), why: &str, errors: &mut Errors) {
    let target = source.at("target");
    if !target.at(fields.0).is_set() && !target.at(fields.1).is_set() {
        target.at(fields.1).required(why, errors);
    }
}

fn of_resource(source: &Field<'_>, of_container: bool, errors: &mut Errors) {
    if source.at("name").text().is_empty() {
        source.at("name").required("must specify a resource name", errors);
    }
    if of_container {
        let container = source.at("container");
        if container.text().is_empty() {
            container.required("must specify a container", errors);
        } else {
            container.fits(names::label, errors);
        }
    }
    amount(source, errors);
    let why = "must set either a target raw value or a target utilization";
    neither(source, ("averageValue", "averageUtilization"), why, errors);
    let (average, utilization) = (source.below("target.averageValue"), source.below("target.averageUtilization"));
    if average.is_set() && utilization.is_set() {
        average.forbidden("may not set both a target raw value and a target utilization", errors);
    }
}

fn validate_rules(rules: &Field<'_>, errors: &mut Errors) {
    let window = rules.at("stabilizationWindowSeconds");
    match window.number() {
        Some(seconds) if seconds < 0 => window.invalid("must be greater than or equal to zero", errors),
        Some(seconds) if seconds > MAX_WINDOW_SECONDS => {
            window.invalid(&format!("must be less than or equal to {MAX_WINDOW_SECONDS}"), errors);
        }
        _ => {}
    }
    rules.at("selectPolicy").optional_one_of(&["Disabled", "Max", "Min"], errors);
    let policies = rules.at("policies");
    if policies.is_empty() {
        policies.required("must specify at least one Policy", errors);
    }
    for policy in policies.items() {
        policy.at("type").one_of(&["Percent", "Pods"], errors);
        for field in ["value", "periodSeconds"].map(|key| policy.at(key)) {
            if field.number().unwrap_or(0) <= 0 {
                field.invalid("must be greater than zero", errors);
            }
        }
        let period = policy.at("periodSeconds");
        if period.number().is_some_and(|seconds| seconds > MAX_PERIOD_SECONDS) {
            period.invalid(&format!("must be less than or equal to {MAX_PERIOD_SECONDS}"), errors);
        }
    }
    let tolerance = rules.at("tolerance");
    if tolerance.quantity().is_some_and(|tolerance| tolerance.is_negative()) {
        tolerance.invalid("must be greater than or equal to 0", errors);
    }
}
