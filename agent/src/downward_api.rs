//! The downward API: values of a pod's own fields and resources, for environments (`pods`) and volumes (`volumes`), which
//! both import it. Pure; imports nothing of this crate.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use windlass_kit::{
    objects::resources::{amount, limit, request},
    quantity::Quantity,
};

/// The value of a path below `metadata`: a name, or one label or annotation; `None` for any other path.
pub(crate) fn metadata_value(pod: &Pod, path: &str) -> Option<String> {
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    let found = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|m| m.get(key).cloned()).unwrap_or_default()
    };
    match path {
        "metadata.name" => Some(pod.metadata.name.clone().unwrap_or_default()),
        "metadata.namespace" => Some(pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned())),
        "metadata.uid" => Some(pod.metadata.uid.clone().unwrap_or_default()),
        _ => keyed("metadata.labels['")
            .map(|key| found(&pod.metadata.labels, key))
            .or_else(|| keyed("metadata.annotations['").map(|key| found(&pod.metadata.annotations, key))),
    }
}

/// A resource amount divided by its divisor, rounded up; the node's allocatable where no limit is set. `own` is the
/// container whose environment it is for, if it is for one.
///
/// # Errors
/// Names the container or resource that does not exist.
pub(crate) fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    field: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, String> {
    let named = field.container_name.as_deref().filter(|n| !n.is_empty());
    let of = match (named, pod.spec.as_ref()) {
        (Some(name), Some(spec)) => spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
            .find(|container| container.name == name)
            .ok_or_else(|| format!("container {name:?} of resourceFieldRef is not in the pod"))?,
        _ => own.ok_or_else(|| "resourceFieldRef needs a containerName here".to_owned())?,
    };
    let (kind, resource) = field
        .resource
        .split_once('.')
        .ok_or_else(|| format!("resource {:?} is not of the form limits.cpu or requests.memory", field.resource))?;
    let amount = match kind {
        // A container without its own limit reports the pod's, or the node's capacity.
        "limits" => limit(of, resource)
            .or_else(|| {
                let whole = pod.spec.as_ref()?.resources.as_ref()?.limits.as_ref();
                amount(whole, resource).filter(|_| matches!(resource, "cpu" | "memory"))
            })
            .or_else(|| allocatable.get(resource).copied()),
        "requests" => request(of, resource),
        _ => return Err(format!("resource {:?} is neither limits nor requests", field.resource)),
    }
    .unwrap_or(Quantity::from_units(0));
    let divisor = field.divisor.as_ref().and_then(|d| d.0.parse::<Quantity>().ok()).filter(|d| !d.is_zero());
    // Amounts of cpu are counted in thousandths, so that a divisor of 1m works.
    let (value, by) = match (resource, divisor) {
        ("cpu", None) => (amount.milli(), 1000),
        ("cpu", Some(divisor)) => (amount.milli(), divisor.milli().max(1)),
        (_, divisor) => (amount.units(), divisor.map_or(1, |d| d.units().max(1))),
    };
    Ok((value.saturating_add(by - 1).div_euclid(by)).to_string())
}
