//! Quality of service classes of pods as JSON. Pure.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};
use windlass_kit::objects::resources::{Class, class};

/// The quality of service that a spec gives its pod.
pub(super) fn qos_class(spec: &Value) -> Result<Class, String> {
    // Only what decides is decoded.
    let containers = |list: &str| -> Value {
        let containers = spec[list].as_array().into_iter().flatten();
        containers.map(|container| json!({"name": "", "resources": container["resources"]})).collect()
    };
    let decisive = json!({
        "containers": containers("containers"),
        "initContainers": containers("initContainers"),
        "resources": spec["resources"],
    });
    let spec: PodSpec =
        windlass_kit::json::from_value(&decisive).map_err(|e| format!("the spec cannot be read: {e}"))?;
    Ok(class(&spec))
}
