//! No privileged containers, where the server does not allow them (upstream: `--allow-privileged` and
//! `validateSecurityContext`). It is a plugin here since `windlass up` always allows them: what a pod may is for PodSecurity and
//! policies to say.

use async_trait::async_trait;
use serde_json::Value;

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Cause, FieldError, Operation};

const WHY: &str = "disallowed by cluster policy";
/// Where objects have the spec of a pod.
const SPECS: [(&str, &str); 3] = [
    ("/spec/jobTemplate/spec/template/spec", "spec.jobTemplate.spec.template.spec"),
    ("/spec/template/spec", "spec.template.spec"),
    ("/template/spec", "template.spec"),
];
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Refuses them.
#[derive(Debug)]
pub(super) struct NoPrivilegedContainers;

#[async_trait]
impl AdmissionPlugin for NoPrivilegedContainers {
    fn name(&self) -> &'static str {
        "NoPrivilegedContainers"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let found = if attributes.is_core("pods") {
            privileged(&object["spec"], "spec")
        } else if matches!(&*attributes.target.version.gvk.group, "" | "apps" | "batch") {
            let of = |(pointer, path): (&str, &str)| object.pointer(pointer).map(|spec| privileged(spec, path));
            SPECS.into_iter().find_map(of).unwrap_or_default()
        } else {
            Vec::new()
        };
        if found.is_empty() {
            return Ok(());
        }
        let errors: Vec<FieldError> = found
            .into_iter()
            .map(|field| FieldError { field, cause: Cause::Forbidden, detail: format!("Forbidden: {WHY}") })
            .collect();
        Err(ApiError::invalid(&attributes.target.version, attributes.name(object), &errors))
    }
}

/// The fields by which containers of a pod ask for it. Pure.
fn privileged(spec: &Value, path: &str) -> Vec<String> {
    let of = |list: &'static str| {
        let containers = spec[list].as_array().into_iter().flatten().enumerate();
        containers
            .filter(|(_, container)| container["securityContext"]["privileged"] == true)
            .map(move |(at, _)| format!("{path}.{list}[{at}].securityContext.privileged"))
    };
    CONTAINERS.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_container_is_looked_at() {
        let container = |privileged: bool| json!({"securityContext": {"privileged": privileged}});
        let spec = json!({
            "containers": [container(false), container(true), {}], "initContainers": [container(true)],
            "ephemeralContainers": [container(true)],
        });
        let expected = [
            "spec.containers[1].securityContext.privileged",
            "spec.initContainers[0].securityContext.privileged",
            "spec.ephemeralContainers[0].securityContext.privileged",
        ];
        assert_eq!(privileged(&spec, "spec"), expected);
        assert!(privileged(&json!({"containers": [{}]}), "spec").is_empty());
    }
}
