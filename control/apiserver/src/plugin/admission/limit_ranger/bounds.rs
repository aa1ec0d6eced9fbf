//! What a LimitRange gives containers and asks of pods and volume claims. Pure.

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;
use windlass_quota::{
    ResourceList,
    pod_resources::{Side, of_spec},
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Amounts that are compared in thousandths: more does not fit upstream's integers.
const MAX_MILLI: i64 = i64::MAX / 1000;

fn limits<'a>(range: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    range["spec"]["limits"].as_array().into_iter().flatten().filter(move |limit| limit["type"] == kind)
}

/// Sets the requests and limits that containers lack, and notes which in an annotation.
pub(super) fn set_defaults(range: &Value, pod: &mut Value) {
    let mut defaults = json!({"requests": {}, "limits": {}});
    for limit in limits(range, "Container") {
        for (field, side) in [("defaultRequest", "requests"), ("default", "limits")] {
            for (resource, amount) in limit[field].as_object().into_iter().flatten() {
                defaults[side][resource] = amount.clone();
            }
        }
    }
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|container| container.is_object()) {
            // Requests are noted before limits.
            for (side, noun) in [("requests", "request"), ("limits", "limit")] {
                let set = fill(container, side, &defaults[side]);
                if !set.is_empty() {
                    let name = container["name"].as_str().unwrap_or("");
                    notes.push(format!("{} {noun} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        if !pod["metadata"]["annotations"].is_object() {
            pod["metadata"]["annotations"] = json!({});
        }
        pod["metadata"]["annotations"][ANNOTATION] = json!(format!("LimitRanger plugin set: {}", notes.join("; ")));
    }
}

/// Adds the amounts that a container lacks; the names of those that were added, sorted.
fn fill(container: &mut Value, side: &str, defaults: &Value) -> Vec<String> {
    let mut set = Vec::new();
    for (resource, amount) in defaults.as_object().into_iter().flatten() {
        if !container["resources"].is_object() {
            container["resources"] = json!({});
        }
        let amounts = &mut container["resources"][side];
        if !amounts.is_object() {
            *amounts = json!({});
        }
        if amounts[resource].is_null() {
            amounts[resource] = amount.clone();
            set.push(resource.clone());
        }
    }
    set
}

/// What of a pod is out of bounds: of each container, and of the pod as a whole.
pub(super) fn violations_of_pod(range: &Value, pod: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for limit in range["spec"]["limits"].as_array().into_iter().flatten() {
        match limit["type"].as_str() {
            Some("Container") => {
                let lists = ["containers", "initContainers"];
                for container in lists.iter().flat_map(|list| pod["spec"][*list].as_array()).flatten() {
                    let resources = &container["resources"];
                    let sides = (Side::Requests.of(resources), Side::Limits.of(resources));
                    violations.extend(violations_of(limit, "Container", &sides));
                }
            }
            Some("Pod") => {
                let sides = (of_spec(pod, Side::Requests), of_spec(pod, Side::Limits));
                violations.extend(violations_of(limit, "Pod", &sides));
            }
            _ => {}
        }
    }
    violations
}

/// What of a volume claim is out of bounds: only requests count.
pub(super) fn violations_of_claim(range: &Value, claim: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let requests = Side::Requests.of(&claim["spec"]["resources"]);
    let mut violations = Vec::new();
    for limit in limits(range, KIND) {
        for (resource, min) in &ResourceList::read(&limit["min"]).0 {
            violations.extend(below_min(KIND, resource, *min, requests.get(resource), None));
        }
        for (resource, max) in &ResourceList::read(&limit["max"]).0 {
            violations.extend(match requests.get(resource) {
                None => Some(format!("maximum {resource} usage per {KIND} is {max}.  No request is specified")),
                Some(request) => above_max(KIND, resource, *max, "request", request),
            });
        }
    }
    violations
}

fn violations_of(limit: &Value, kind: &str, (requests, limits): &(ResourceList, ResourceList)) -> Vec<String> {
    let mut violations = Vec::new();
    for (resource, min) in &ResourceList::read(&limit["min"]).0 {
        violations.extend(below_min(kind, resource, *min, requests.get(resource), limits.get(resource)));
    }
    for (resource, max) in &ResourceList::read(&limit["max"]).0 {
        let (request, limit) = (requests.get(resource), limits.get(resource));
        violations.extend(match limit {
            None => Some(format!("maximum {resource} usage per {kind} is {max}.  No limit is specified")),
            Some(limit) => above_max(kind, resource, *max, "limit", limit)
                .or_else(|| above_max(kind, resource, *max, "request", request?)),
        });
    }
    for (resource, ratio) in &ResourceList::read(&limit["maxLimitRequestRatio"]).0 {
        violations.extend(above_ratio(kind, resource, *ratio, requests.get(resource), limits.get(resource)));
    }
    violations
}

fn below_min(
    kind: &str,
    resource: &str,
    min: Quantity,
    request: Option<Quantity>,
    limit: Option<Quantity>,
) -> Option<String> {
    let bound = format!("minimum {resource} usage per {kind} is {min}");
    match (request, limit) {
        (None, _) => Some(format!("{bound}.  No request is specified")),
        (Some(request), _) if request < min => Some(format!("{bound}, but request is {request}")),
        (Some(_), Some(limit)) if limit < min => Some(format!("{bound}, but limit is {limit}")),
        _ => None,
    }
}

fn above_max(kind: &str, resource: &str, max: Quantity, what: &str, amount: Quantity) -> Option<String> {
    (amount > max).then(|| format!("maximum {resource} usage per {kind} is {max}, but {what} is {amount}"))
}

fn above_ratio(
    kind: &str,
    resource: &str,
    max: Quantity,
    request: Option<Quantity>,
    limit: Option<Quantity>,
) -> Option<String> {
    let bound = format!("{resource} max limit to request ratio per {kind} is {max}");
    let (Some(request), false) = (request, request.is_none_or(Quantity::is_zero)) else {
        return Some(format!("{bound}, but no request is specified or request is 0"));
    };
    let (Some(limit), false) = (limit, limit.is_none_or(Quantity::is_zero)) else {
        return Some(format!("{bound}, but no limit is specified or limit is 0"));
    };
    let whole = [request, limit, max].into_iter().any(|amount| amount.units() > MAX_MILLI);
    let comparable = |amount: Quantity| if whole { amount.units() } else { amount.milli() };
    #[expect(clippy::cast_precision_loss, reason = "upstream compares floating-point numbers")]
    let (ratio, allowed) = (
        comparable(limit) as f64 / comparable(request) as f64,
        if max.units() <= MAX_MILLI { max.milli() as f64 / 1000.0 } else { max.units() as f64 },
    );
    (ratio > allowed).then(|| format!("{bound}, but provided ratio is {ratio:.6}"))
}
