//! PodResizeValidator: a pod that runs on a node asks for no more than the node could ever give it.

use async_trait::async_trait;
use serde_json::Value;
use windlass_quota::{
    ResourceList,
    pod_resources::{Side, of_spec},
};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Key, Store},
};

/// Refuses the resize.
#[derive(Debug)]
pub(super) struct PodResizeValidator {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let is_resize = attributes.is_core("pods") && attributes.target.subresource() == "resize";
        let unchanged = || attributes.old.is_some_and(|old| old["spec"] == object["spec"]);
        let node = object["spec"]["nodeName"].as_str().unwrap_or("");
        if !is_resize || node.is_empty() || unchanged() {
            return Ok(());
        }
        let key = Key { namespace: String::new(), name: node.to_owned() };
        let found = self.store.get(self.store.resource("nodes"), &key).map(|node| node.value());
        let found = found.ok_or_else(|| attributes.forbidden(object, &format!("node {node:?} not found")))?;
        check(object, &found).map_err(|(why, cause)| attributes.forbidden(object, &why).with_cause(cause, "", ""))
    }
}

/// Why a node can never run a pod, and the type of the cause. Pure.
fn check(pod: &Value, node: &Value) -> Result<(), (String, &'static str)> {
    if let Some(system) = node["metadata"]["labels"]["kubernetes.io/os"].as_str().filter(|system| *system != "linux") {
        let name = node["metadata"]["name"].as_str().unwrap_or("");
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        return Err((why, "UnsupportedPlatform"));
    }
    let mut requests = of_spec(pod, Side::Requests);
    requests.add(&ResourceList::read(&pod["spec"]["overhead"]));
    let allocatable = ResourceList::read(&node["status"]["allocatable"]);
    let amounts = |resource: &str| {
        let (requested, allocatable) = (requests.get(resource)?, allocatable.get(resource));
        let number = |amount: windlass_kit::quantity::Quantity| {
            if resource == "cpu" { amount.milli() } else { amount.units() }
        };
        let is_more = allocatable.is_none_or(|allocatable| requested > allocatable) && !requested.is_zero();
        let (requested, allocatable) = (number(requested), allocatable.map_or(0, number));
        is_more.then(|| format!("{resource}, requested: {requested}, allocatable: {allocatable}"))
    };
    let missing: Vec<String> = ["cpu", "memory"].into_iter().filter_map(amounts).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err((format!("node didn't have enough allocatable resources: {}", missing.join("; ")), "NodeCapacity"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_more_than_the_node_has() {
        let node = |system: &str| {
            json!({
                "metadata": {"name": "n", "labels": {"kubernetes.io/os": system}},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}},
            })
        };
        let pod = |cpu: &str, memory: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": memory}}}]}});
        check(&pod("4", "8Gi"), &node("linux")).unwrap();
        assert_eq!(
            check(&pod("10", "10Gi"), &node("linux")).unwrap_err().0,
            "node didn't have enough allocatable resources: cpu, requested: 10000, allocatable: 4000; memory, requested: 10737418240, allocatable: 8589934592"
        );
        assert_eq!(
            check(&pod("1", "1Gi"), &node("windows")).unwrap_err().0,
            "pod resize is only supported on linux nodes, node \"n\" is \"windows\""
        );
    }
}
