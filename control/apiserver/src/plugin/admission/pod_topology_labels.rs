//! PodTopologyLabels: a pod has the labels of its node that say in which zone and region it is. A binding brings them to the
//! pod.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Key, Store},
};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Copies the labels.
#[derive(Debug)]
pub(super) struct PodTopologyLabels {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let node = match attributes.target.subresource() {
            _ if !attributes.is_core("pods") => None,
            "" => object["spec"]["nodeName"].as_str(),
            "binding" if object["target"]["kind"] == "Node" => object["target"]["name"].as_str(),
            _ => None,
        };
        let Some(node) = node.filter(|node| !node.is_empty()) else { return Ok(()) };
        let key = Key { namespace: String::new(), name: node.to_owned() };
        // A node that does not exist (yet) has no labels.
        if let Some(node) = self.store.get(self.store.resource("nodes"), &key) {
            copy_labels(&node.value(), object);
        }
        Ok(())
    }
}

/// Pure.
fn copy_labels(node: &Value, object: &mut Value) {
    for label in LABELS {
        let value = &node["metadata"]["labels"][label];
        if value.is_null() {
            continue;
        }
        if !object["metadata"]["labels"].is_object() {
            object["metadata"]["labels"] = json!({});
        }
        object["metadata"]["labels"][label] = value.clone();
    }
}
