//! Scopes: which objects a quota is about. Pure.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;
use windlass_kit::objects::resources::{Class, class};

use super::{Evaluator, claims};

/// One requirement of a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

/// The requirements of a quota's spec: all must hold.
pub(super) fn read(spec: &Value) -> Vec<Scope> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let exists = |scope: &Value| Scope { name: text(scope), operator: "Exists".to_owned(), values: Vec::new() };
    let stated = list(&spec["scopes"]).iter().map(exists).collect::<Vec<_>>();
    let selected = list(&spec["scopeSelector"]["matchExpressions"]).into_iter().map(|requirement| Scope {
        name: text(&requirement["scopeName"]),
        operator: text(&requirement["operator"]),
        values: list(&requirement["values"]).iter().map(text).collect(),
    });
    stated.into_iter().chain(selected).collect()
}

impl Scope {
    /// Whether an object of a resource is in the scope. Only pods and volume claims are in any.
    pub(super) fn holds(&self, evaluator: &Evaluator, object: &Value) -> bool {
        match evaluator {
            Evaluator::Pods => self.holds_for_pod(object),
            Evaluator::VolumeClaims if self.name == "VolumeAttributesClass" => {
                self.matches(&claims::attributes_classes(object).collect::<Vec<_>>())
            }
            _ => false,
        }
    }

    fn holds_for_pod(&self, pod: &Value) -> bool {
        let spec = &pod["spec"];
        let terminating = || spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
        match self.name.as_str() {
            "Terminating" => terminating(),
            "NotTerminating" => !terminating(),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => {
                let class = spec["priorityClassName"].as_str().filter(|class| !class.is_empty());
                self.matches(class.as_slice())
            }
            "CrossNamespacePodAffinity" => crosses_namespaces(&spec["affinity"]),
            _ => false,
        }
    }

    /// Whether the names of an object fulfil the requirement: one of several is enough.
    fn matches(&self, names: &[&str]) -> bool {
        let is_listed = |name: &&str| self.values.iter().any(|value| value == name);
        match self.operator.as_str() {
            "Exists" => !names.is_empty(),
            "DoesNotExist" => names.is_empty(),
            "In" => names.iter().any(is_listed),
            "NotIn" => names.is_empty() || !names.iter().all(is_listed),
            _ => false,
        }
    }
}

fn is_best_effort(pod: &Value) -> bool {
    match pod["status"]["qosClass"].as_str() {
        Some(given) if !given.is_empty() => given == Class::BestEffort.name(),
        _ => {
            windlass_kit::json::from_value::<PodSpec>(&pod["spec"]).is_ok_and(|spec| class(&spec) == Class::BestEffort)
        }
    }
}

/// Whether a term of pod affinity is about other namespaces.
fn crosses_namespaces(affinity: &Value) -> bool {
    let is_set = |term: &Value| {
        term["namespaceSelector"].is_object() || term["namespaces"].as_array().is_some_and(|all| !all.is_empty())
    };
    ["podAffinity", "podAntiAffinity"].iter().map(|kind| &affinity[*kind]).any(|terms| {
        let list = |field: &str| terms[field].as_array().into_iter().flatten();
        list("requiredDuringSchedulingIgnoredDuringExecution").any(is_set)
            || list("preferredDuringSchedulingIgnoredDuringExecution").any(|term| is_set(&term["podAffinityTerm"]))
    })
}
