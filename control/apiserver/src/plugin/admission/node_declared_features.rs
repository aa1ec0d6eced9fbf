//! NodeDeclaredFeatureValidator: a pod that runs on a node changes only in ways that the node declares to know.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Key, Store},
};

const POD_LEVEL: &str = "InPlacePodLevelResourcesVerticalScaling";
const INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";

/// Refuses the change.
#[derive(Debug)]
pub(super) struct NodeDeclaredFeatureValidator {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let changes = attributes.is_core("pods") && matches!(attributes.target.subresource(), "" | "resize");
        let node = object["spec"]["nodeName"].as_str().unwrap_or("");
        let Some(old) = attributes.old.filter(|_| changes && !node.is_empty()) else { return Ok(()) };
        let needed = needed(&object["spec"], &old["spec"]);
        if needed.is_empty() {
            return Ok(());
        }
        let key = Key { namespace: String::new(), name: node.to_owned() };
        let found = self.store.get(self.store.resource("nodes"), &key).map(|node| node.value());
        let found = found.ok_or_else(|| attributes.forbidden(object, &format!("node {node:?} not found")))?;
        let declared = found["status"]["declaredFeatures"].as_array();
        let has = |feature: &&str| declared.is_some_and(|all| all.iter().any(|own| own == feature));
        let missing: Vec<&str> = needed.into_iter().filter(|feature| !has(feature)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        let why = format!("pod update requires features {missing} which are not available on node {node:?}");
        Err(attributes.forbidden(object, &why))
    }
}

/// The features that a change of a pod needs, in order. Pure.
fn needed(new: &Value, old: &Value) -> Vec<&'static str> {
    fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
        spec["initContainers"].as_array().into_iter().flatten()
    }
    let is_resized = |container: &Value| {
        let was = containers(old).find(|was| was["name"] == container["name"]);
        container["restartPolicy"] != "Always" && was.is_some_and(|was| was["resources"] != container["resources"])
    };
    let changes =
        [(POD_LEVEL, new["resources"] != old["resources"]), (INIT_CONTAINERS, containers(new).any(is_resized))];
    changes.into_iter().filter(|(_, changes)| *changes).map(|(feature, _)| feature).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resizes_of_pods_and_init_containers_need_features() {
        let pod = |pod: &str, init: &str, sidecar: &str, main: &str| {
            let of = |cpu: &str| json!({"requests": {"cpu": cpu}});
            json!({
                "resources": of(pod),
                "initContainers": [
                    {"name": "i", "resources": of(init)},
                    {"name": "s", "restartPolicy": "Always", "resources": of(sidecar)},
                ],
                "containers": [{"name": "c", "resources": of(main)}],
            })
        };
        let old = pod("1", "1", "1", "1");
        let rows: [(Value, &[&str]); 5] = [
            (old.clone(), &[]),
            (pod("1", "1", "2", "2"), &[]),
            (pod("2", "1", "1", "1"), &[POD_LEVEL]),
            (pod("1", "2", "1", "1"), &[INIT_CONTAINERS]),
            (pod("2", "2", "1", "1"), &[POD_LEVEL, INIT_CONTAINERS]),
        ];
        for (new, wanted) in rows {
            assert_eq!(needed(&new, &old), wanted, "{new}");
        }
    }
}
