//! What is said of pods, and of templates of them.

use serde_json::{Map, Value, json};

use super::{
    changes::{changed, replaced},
    columns,
    reply_columns::{Said, errors_of, warnings_of},
    server::{Asking, Server},
};

const PODS: &str = "/api/v1/namespaces/n/pods";

/// A pod, or the Deployment with it as template: the path and object to create, and where the spec of pods is in it.
fn with_pod(kind: &str, pod: Value) -> (String, Value, &'static str) {
    let (path, object, at) = match kind {
        "Pod" => (PODS, pod, "/spec"),
        _ => {
            let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pod});
            let deployment = json!({"metadata": {"name": "x"}, "spec": spec});
            ("/apis/apps/v1/namespaces/n/deployments", deployment, "/spec/template/spec")
        }
    };
    (format!("{path}?dryRun=All"), object, at)
}

/// A pod with a container, and the rest of its spec.
fn pod_of(rest: &str) -> anyhow::Result<Value> {
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false});
    let spec = extended(spec, rest)?;
    Ok(json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec}))
}

/// An object with these fields as well.
fn extended(mut object: Value, fields: &str) -> anyhow::Result<Value> {
    let fields: Map<String, Value> = serde_json::from_str(fields)?;
    object.as_object_mut().into_iter().for_each(|all| all.extend(fields.clone()));
    Ok(object)
}

/// `Pod`, or `Deployment` for its template, the spec but for its container; the errors, the warnings, and the fields of the
/// answer's spec that are asked for.
pub(super) async fn spec<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [kind, rest, _, _, fields] = columns(row)?;
    let (path, object, at) = with_pod(kind, pod_of(rest)?);
    let reply = asking.call("POST", &path, &object).await?;
    let spec = reply.body.pointer(at).filter(|_| reply.code == 201 && !fields.is_empty());
    let answered = match spec {
        None => Said::Nothing,
        Some(spec) => {
            let fields: Map<String, Value> = serde_json::from_str(fields)?;
            let found = fields.keys().map(|field| (field.clone(), spec[field].clone()));
            Said::Value(Value::Object(found.collect()))
        }
    };
    Ok(vec![Said::Errors(errors_of(&reply)), Said::Warnings(warnings_of(&reply)), answered])
}

/// The subresource, the spec of a pod but for its container, the rest of its metadata, what its status has, what is changed by
/// pointers; the errors.
pub(super) async fn change<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [subresource, rest, metadata, status, changes, _] = columns(row)?;
    let mut pod = pod_of(rest)?;
    pod["metadata"] = extended(pod["metadata"].take(), metadata)?;
    let (status, changes) = (serde_json::from_str(status)?, serde_json::from_str(changes)?);
    changed(asking, [PODS, "x", subresource], pod, &status, &changes).await
}

/// Creates the pod with these ephemeral containers.
pub(super) async fn prepare<S: Server>(asking: &mut Asking<S>, ephemeral: &str) -> anyhow::Result<()> {
    let pod = json!({"metadata": {"name": "x"}, "spec": {
        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "initContainers": [{"name": "i", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}],
        "automountServiceAccountToken": false,
    }});
    let mut pod = asking.must(201, "POST", PODS, &pod).await?;
    pod["spec"]["ephemeralContainers"] = serde_json::from_str(ephemeral)?;
    asking.must(200, "PUT", &format!("{PODS}/x/ephemeralcontainers"), &pod).await?;
    Ok(())
}

/// The ephemeral containers that are there, those that stand there instead; the errors, the warnings, and what is there then,
/// if they are taken.
pub(super) async fn ephemeral_containers<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [_, wanted, ..] = columns::<5>(row)?;
    let wanted: Value = serde_json::from_str(wanted)?;
    let change = |mut pod: Value| {
        pod["spec"]["ephemeralContainers"] = wanted.clone();
        pod
    };
    let reply = replaced(asking, &format!("{PODS}/x"), "ephemeralcontainers", change).await?;
    let taken = reply.code == 200;
    let answered = if taken { Said::Value(reply.body["spec"]["ephemeralContainers"].clone()) } else { Said::Nothing };
    Ok(vec![Said::Errors(errors_of(&reply)), Said::Warnings(warnings_of(&reply)), answered])
}

/// `Pod`, or `Deployment` for its template, annotations, spec; the errors, the warnings, and the security contexts of
/// containers in the answer.
pub(super) async fn security_profiles<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [kind, annotations, spec, ..] = columns::<6>(row)?;
    let annotations: Value = serde_json::from_str(annotations)?;
    let spec: Value = serde_json::from_str(spec)?;
    let metadata = json!({"name": "x", "labels": {"a": "b"}, "annotations": annotations});
    let (path, object, at) = with_pod(kind, json!({"metadata": metadata, "spec": spec}));
    let reply = asking.call("POST", &path, &object).await?;
    let contexts = match reply.body.pointer(at).filter(|_| reply.code == 201) {
        None => Said::Nothing,
        Some(spec) => {
            let containers = ["containers", "initContainers"].map(|list| spec[list].as_array());
            let containers = containers.into_iter().flatten().flatten().filter(|one| !one["securityContext"].is_null());
            let context = |one: &Value| (one["name"].as_str().unwrap_or("").to_owned(), one["securityContext"].clone());
            Said::Value(Value::Object(containers.map(context).collect()))
        }
    };
    Ok(vec![Said::Errors(errors_of(&reply)), Said::Warnings(warnings_of(&reply)), contexts])
}
