//! `binding`: puts a pod on a node, once.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, Draft, RequestOptions, Strategy, Target, VirtualResource, WriteOptions,
        generate::now,
        handlers::subresource::SubresourceHandler,
        types::{Definition, Gvk, Resource, Storage, VersionSpec},
    },
    kinds::{shared::posted, types},
};

const BINDING: Gvk = Gvk::of("", "v1", "Binding");

/// Puts a pod on a node, once.
#[derive(Debug)]
pub(super) struct Bind;

#[async_trait]
impl SubresourceHandler for Bind {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        bind(request, target, options, posted::read(request, target, &BINDING, options, body)?).await
    }
}

/// `bindings`, a resource of its own that puts the pod of the binding's name on a node.
#[derive(Debug)]
struct Bindings;

#[async_trait]
impl VirtualResource for Bindings {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let binding = posted::read(request, target, &BINDING, options, body)?;
        let catalog = request.api.catalogs().current();
        let pods = catalog.find("", "v1", "pods").ok_or_else(|| ApiError::internal("pods are not served"))?;
        let pod = Target {
            version: Arc::clone(pods),
            namespace: target.namespace.clone(),
            name: Some(binding["metadata"]["name"].as_str().unwrap_or("").to_owned()),
            subresource: Some("binding".to_owned()),
        };
        bind(request, &pod, options, binding).await
    }
}

#[derive(Debug)]
struct Binding;

impl Strategy for Binding {}

/// The resource `bindings`.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "bindings", "Binding", Binding);
    resource.verbs = vec!["create"];
    resource.storage = Storage::computed(Bindings);
    Definition::single(resource, VersionSpec::new("v1", types::built_in("v1", "Binding")))
}

async fn bind(request: &ApiRequest, target: &Target, options: &RequestOptions, binding: Value) -> ApiResult {
    let name = target.name();
    if binding["metadata"]["name"] != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let binding = request.admit_posted(target, options, binding, None).await?;
    let make = |old: &Value| {
        check_binding(target, &binding, old)?;
        bind_pod(&binding, old).map(Draft::Write).map_err(|why| match why {
            BindError::Invalid(why) => ApiError::bad_request(why),
            BindError::Conflict(why) => ApiError::conflict_of(&target.version, "binding", name, &why),
        })
    };
    posted::change(request, target, WriteOptions::Query(options), &make).await?;
    Ok(posted::done(request))
}

/// Checks uid and resource version of a binding, where it has them: the pod may have been recreated under its name.
fn check_binding(target: &Target, binding: &Value, pod: &Value) -> Result<(), ApiError> {
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
    for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, is) = (text(binding, field), text(pod, field));
        if !wanted.is_empty() && wanted != is {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is}");
            return Err(ApiError::conflict(&target.version, target.name(), &why));
        }
    }
    Ok(())
}

/// Why a pod cannot be bound.
#[derive(Debug, PartialEq, Eq)]
enum BindError {
    /// The binding itself is wrong.
    Invalid(String),
    /// The pod cannot be bound as it is.
    Conflict(String),
}

/// The pod bound to the node of a binding, with the binding's annotations and labels. Pure, except for the clock.
fn bind_pod(binding: &Value, pod: &Value) -> Result<Value, BindError> {
    let target = &binding["target"];
    if let Some(kind) = target["kind"].as_str().filter(|kind| !matches!(*kind, "" | "Node")) {
        return Err(BindError::Invalid(format!(
            "target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\""
        )));
    }
    let Some(node) = target["name"].as_str().filter(|node| !node.is_empty()) else {
        return Err(BindError::Invalid("target.name: Required value".to_owned()));
    };
    let name = pod["metadata"]["name"].as_str().unwrap_or("");
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Err(BindError::Conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    if let Some(taken) = pod["spec"]["nodeName"].as_str().filter(|taken| !taken.is_empty()) {
        return Err(BindError::Conflict(format!("pod {name} is already assigned to node {taken:?}")));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(BindError::Conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now()});
    let mut conditions: Vec<Value> = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|c| c["type"] != "PodScheduled");
    conditions.push(condition);
    pod["status"]["conditions"] = Value::Array(conditions);
    // It has served its purpose (upstream's `ClearingNominatedNodeNameAfterBinding`).
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_pod_is_scheduled_and_nominated_no_longer() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending", "nominatedNodeName": "n1",
            "conditions": [{"type": "PodScheduled", "status": "False"}]}});
        let bound = bind_pod(&json!({"target": {"kind": "Node", "name": "n1"}}), &pod).unwrap();
        assert_eq!((&bound["spec"]["nodeName"], &bound["status"]["nominatedNodeName"]), (&json!("n1"), &Value::Null));
        assert_eq!(bound["status"]["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(bound["status"]["conditions"][0]["status"], "True");
        let again = bind_pod(&json!({"target": {"name": "n2"}}), &bound);
        assert_eq!(again, Err(BindError::Conflict("pod p is already assigned to node \"n1\"".to_owned())));
    }
}
