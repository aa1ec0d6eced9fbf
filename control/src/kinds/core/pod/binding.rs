//! `binding`: puts a pod on a node, once.

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, Draft, Mutation, Operation, Scope, Target, Warnings, generate::now,
        request_info::RequestOptions, subresource::SubresourceHandler, types::Gvk,
    },
    kinds::types,
};

const BINDING: Gvk = Gvk::of("", "v1", "Binding");

/// Puts a pod on a node, once.
#[derive(Debug)]
pub(super) struct Bind;

#[async_trait]
impl SubresourceHandler for Bind {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let schema = types::built_in("v1", "Binding");
        let mut binding = request.read_as((&BINDING, &schema), options, body)?.value;
        schema.prune(&mut binding);
        let name = target.name();
        if binding["metadata"]["name"] != name {
            return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
        }
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or("");
        if !namespace.is_empty() && Some(namespace) != target.namespace.as_deref() {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        request.admit_posted(target, options, &binding, None).await?;
        let make = |old: Option<&Value>| {
            let old = old.unwrap_or(&Value::Null);
            check_binding(target, &binding, old)?;
            let bound = bind_pod(&binding, old).map_err(|why| match why {
                BindError::Invalid(why) => ApiError::bad_request(why),
                BindError::Conflict(why) => ApiError::conflict_of(&target.version, "binding", name, &why),
            })?;
            Ok(Draft::Write(bound))
        };
        let mutation = Mutation {
            target,
            operation: Operation::Update,
            scope: Scope::Server,
            dry_run: options.dry_run,
            warnings: &Warnings::default(),
            manager: None,
            make: &make,
        };
        request.mutate(mutation).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(request.accept.write(StatusCode::CREATED, &status))
    }
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
    Ok(pod)
}
