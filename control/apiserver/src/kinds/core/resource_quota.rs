//! ResourceQuota. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{
            errors::{AT_LEAST_0, Errors},
            names,
        },
        types::{Definition, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, IMMUTABLE},
            internal_version::{Internal, Table},
            resource_names as resources,
            tables::{AGE, column, named},
        },
        types,
    },
};

/// Scopes that are known.
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
/// Scopes that only exist or not.
const EXISTING: [&str; 5] =
    ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity"];
/// Scopes that exclude each other.
const CONFLICTING: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "resourcequotas", "ResourceQuota", ResourceQuota);
    resource.short_names = vec!["quota".into()];
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "ResourceQuota"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Request", "What is used of what may be requested."),
        column("Limit", "What is used of what limits may be."),
        AGE,
    ];
    v1.table = named(columns, |object, age| {
        let [requests, limits] = amounts(&object["status"]);
        vec![json!(requests), json!(limits), json!(age)]
    });
    Definition::single(resource, v1)
}

/// What is used of each resource: requests, and limits.
fn amounts(status: &Value) -> [String; 2] {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in status["hard"].as_object().into_iter().flatten() {
        let used = status["used"][resource].as_str().unwrap_or("0");
        let shown = format!("{resource}: {used}/{}", text(hard));
        if resource.starts_with("limits.") { limits.push(shown) } else { requests.push(shown) }
    }
    [requests.join(", "), limits.join(", ")]
}

#[derive(Debug)]
struct ResourceQuota;

impl Strategy for ResourceQuota {
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some() {
            return Vec::new();
        }
        let hard = Field::root(new).below("spec.hard");
        let told = ["cpu", "memory", "storage", "ephemeral-storage"].into_iter().filter_map(|resource| {
            let long = format!("requests.{resource}");
            let is_bare = !hard.at_name(&long).is_set() && matches!(resource, "cpu" | "memory");
            let (request, limit) = (if is_bare { resource.to_owned() } else { long }, format!("limits.{resource}"));
            let (least, most) = (hard.at_name(&request).quantity()?, hard.at_name(&limit).quantity()?);
            let why = || format!("ResourceQuota {request} ({least}) should be less than {limit} ({most})");
            (least > most).then(why)
        });
        told.collect()
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        validate_amounts(&spec.at("hard"), errors);
        validate_scopes(&spec, errors);
        validate_scope_selector(&spec, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let scopes = |object: &Value| -> BTreeSet<String> {
            let all = object["spec"]["scopes"].as_array().into_iter().flatten();
            all.map(|scope| text(scope).to_owned()).collect()
        };
        if scopes(new) != scopes(old) {
            errors.invalid("spec.scopes", &new["spec"]["scopes"], IMMUTABLE);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        for field in ["hard", "used"] {
            validate_amounts(&status.at(field), errors);
        }
    }
}

fn validate_amounts(amounts: &Field<'_>, errors: &mut Errors) {
    for (resource, amount) in amounts.entries() {
        let path = &amount.path;
        if let Some(why) = names::qualified(resource) {
            errors.invalid_text(path, resource, &why);
        } else if !resource.contains('/') && !resources::is_standard(resource) && !is_count(resource) {
            errors.invalid_text(path, resource, "must be a standard resource type or fully qualified");
        }
        if !resource.contains('/') && !resources::is_of_quotas(resource) && !is_count(resource) {
            errors.invalid_text(path, resource, "must be a standard resource for quota");
        }
        let Some(quantity) = amount.quantity() else { continue };
        if quantity.is_negative() {
            amount.invalid(AT_LEAST_0, errors);
        }
        if resources::is_whole(resource) && quantity.milli() % 1000 != 0 {
            amount.invalid("must be an integer", errors);
        }
    }
}

/// A count of objects: `count/deployments.apps`.
fn is_count(resource: &str) -> bool {
    resource.starts_with("count/")
}

/// Whether a scope can be counted for a resource.
fn fits(scope: &str, resource: &str) -> bool {
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || resources::is_of_containers(resource) || is_amount_of_pods(resource)
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn is_amount_of_pods(resource: &str) -> bool {
    let rest = resource.strip_prefix("requests.").or_else(|| resource.strip_prefix("limits."));
    rest.is_some_and(resources::is_of_containers)
}

fn unfit(spec: &Field<'_>, scope: &str) -> usize {
    let hard = spec.at("hard");
    hard.entries().filter(|(resource, _)| resources::is_of_quotas(resource) && !fits(scope, resource)).count()
}

fn conflicts(scopes: &BTreeSet<&str>) -> bool {
    CONFLICTING.iter().any(|pair| pair.iter().all(|scope| scopes.contains(scope)))
}

fn validate_scopes(spec: &Field<'_>, errors: &mut Errors) {
    let scopes = spec.at("scopes");
    let mut known = BTreeSet::new();
    for scope in scopes.texts() {
        if !SCOPES.contains(&scope) {
            scopes.invalid("unsupported scope", errors);
        }
        for _ in 0..unfit(spec, scope) {
            scopes.invalid("unsupported scope applied to resource", errors);
        }
        known.insert(scope);
    }
    if conflicts(&known) {
        scopes.invalid("conflicting scopes", errors);
    }
}

/// Upstream's type of a selector of scopes.
const SCOPE_SELECTOR: Table = "\
MatchExpressions matchExpressions []
 ScopeName scopeName \"\"
 Operator operator \"\"
 Values values null
";

fn validate_scope_selector(spec: &Field<'_>, errors: &mut Errors) {
    let expressions = spec.below("scopeSelector.matchExpressions");
    // Of the whole selector, besides the path of its expressions.
    let shown = || Internal::new(SCOPE_SELECTOR, spec.at("scopeSelector").value).text();
    let mut known = BTreeSet::new();
    for expression in expressions.items() {
        // Upstream's paths are without the place in the list.
        let at = |field: &'static str| Field { path: expressions.path.field(field), ..expression.at(field) };
        let (scope, operator, values) = (at("scopeName"), at("operator"), at("values"));
        if !SCOPES.contains(&scope.text()) {
            scope.invalid("unsupported scope", errors);
        }
        for _ in 0..unfit(spec, scope.text()) {
            expressions.invalid_as(&shown(), "unsupported scope applied to resource", errors);
        }
        if EXISTING.contains(&scope.text()) && operator.text() != "Exists" {
            operator.invalid("must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity", errors);
        }
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                values.required(
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                    errors,
                );
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                values.invalid(
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                    errors,
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => operator.invalid("not a valid selector operator", errors),
        }
        known.insert(scope.text());
    }
    if conflicts(&known) {
        // As upstream, which writes the other list here.
        let scopes = spec.at("scopes");
        Field { path: expressions.path, ..scopes }.invalid("conflicting scopes", errors);
    }
}
