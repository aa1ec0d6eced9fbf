//! Quality of service classes of pods as JSON. Pure.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;
use windlass_kit::objects::resources::{Class, class};

/// The quality of service that a spec gives its pod.
pub(super) fn qos_class(spec: &Value) -> Result<Class, String> {
    let spec: PodSpec = windlass_kit::json::from_value(spec).map_err(|e| format!("the spec cannot be read: {e}"))?;
    Ok(class(&spec))
}
