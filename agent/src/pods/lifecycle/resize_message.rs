//! The messages of events about a resize: what the containers are to have, as JSON that tools read. Pure.
//!
//! Upstream: `pkg/kubelet/events/resize.go`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceClaim},
    apimachinery::pkg::api::resource::Quantity,
};
use serde::Serialize;

use super::spec::init_containers;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Allocation<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Allocation<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Allocation<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

/// With the fields in upstream's order.
#[derive(Default, Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a [ResourceClaim]>,
}

fn allocation(container: &Container) -> Allocation<'_> {
    let resources = container.resources.as_ref().map(|resources| Resources {
        limits: resources.limits.as_ref().filter(|all| !all.is_empty()),
        requests: resources.requests.as_ref().filter(|all| !all.is_empty()),
        claims: resources.claims.as_deref().filter(|all| !all.is_empty()),
    });
    Allocation { name: &container.name, resources: resources.unwrap_or_default() }
}

/// A message such as `Pod resize started: {…}`; `what` is what happened, `error` why, where it went wrong.
pub(crate) fn resize_message(pod: &Pod, what: &str, error: &str) -> String {
    let start = format!("Pod resize {what}");
    let Some(spec) = &pod.spec else { return start };
    let summary = Summary {
        init_containers: init_containers(spec).iter().map(allocation).collect(),
        containers: spec.containers.iter().map(allocation).collect(),
        generation: pod.metadata.generation.unwrap_or_default(),
        error,
    };
    serde_json::to_string(&summary).map_or(start.clone(), |summary| format!("{start}: {summary}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream's own tests have them.
    #[test]
    fn messages_are_upstreams() {
        let pod = |generation: i64, spec: &str| -> Pod {
            let text = format!(r#"{{"metadata":{{"generation":{generation}}},"spec":{spec}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let several = r#"{"initContainers":[{"name":"c0","restartPolicy":"Always",
                "resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"200m"}}}],
            "containers":[{"name":"c1","resources":{"requests":{"memory":"100"},"limits":{"memory":"200"}}},
                {"name":"c2","resources":{"requests":{"cpu":"200m","memory":"100"}}}]}"#;
        assert_eq!(
            resize_message(&pod(2, several), "completed", ""),
            r#"Pod resize completed: {"initContainers":[{"name":"c0","resources":{"limits":{"cpu":"200m"},"requests":{"cpu":"100m"}}}],"containers":[{"name":"c1","resources":{"limits":{"memory":"200"},"requests":{"memory":"100"}}},{"name":"c2","resources":{"requests":{"cpu":"200m","memory":"100"}}}],"generation":2}"#
        );
        let plain = r#"{"containers":[{"name":"c0"}]}"#;
        for (what, error, message) in [
            ("started", "", r#"Pod resize started: {"containers":[{"name":"c0","resources":{}}],"generation":3}"#),
            (
                "error",
                "error: \"x\"",
                r#"Pod resize error: {"containers":[{"name":"c0","resources":{}}],"generation":3,"error":"error: \"x\""}"#,
            ),
        ] {
            assert_eq!(resize_message(&pod(3, plain), what, error), message);
        }
        assert_eq!(resize_message(&Pod::default(), "error", ""), "Pod resize error");
    }
}
