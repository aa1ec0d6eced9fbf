//! The subresources that one kind has for itself: scale, binding, eviction, logs, finalize.

use axum::{body::Bytes, http::StatusCode, response::IntoResponse as _};
use serde_json::{Value, json};
use windlass_kit::percent;

use super::{
    Answer, Call, KubeletClient,
    connect::SUBRESOURCES,
    error::ApiError,
    prepare,
    target::{Options, Target},
    write::{TRIES, check_preconditions},
};
use crate::{
    registry::{Gvk, of_kind},
    schema::{self, ContentType},
    store::Key,
};

const SCALE: Gvk = Gvk { group: "autoscaling", version: "v1", kind: "Scale" };
const BINDING: Gvk = Gvk { group: "", version: "v1", kind: "Binding" };
const EVICTION: Gvk = Gvk { group: "policy", version: "v1", kind: "Eviction" };

impl Call {
    pub(super) async fn special(&self, verb: &str, target: &Target, options: &Options, body: &Bytes) -> Answer {
        match (target.sub.as_deref(), verb) {
            (Some("scale"), "get") => {
                Ok(self.accept.write(StatusCode::OK, &scale_of(target, &self.fetch(target)?.value())))
            }
            (Some("scale"), "update" | "patch") => self.scale(target, options, body).await,
            (Some("binding"), "create") => self.bind(target, options, body).await,
            (Some("eviction"), "create") => {
                self.evict(target, options, &self.read_object(&EVICTION, options, body)?.value).await
            }
            (Some("finalize"), "update") => self.update(target, options, body).await,
            (Some("token"), "create") => self.token(target, options, body).await,
            (Some("log"), "get") => self.log(target, options).await,
            (Some(sub), "get" | "create") if SUBRESOURCES.contains(&sub) => self.connect(target, options).await,
            _ => Err(target.not_allowed(&self.method)),
        }
    }

    async fn scale(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let whole = Target { sub: None, ..target.clone() };
        let name = target.name.as_deref().unwrap_or("");
        let patch = if self.method == "PATCH" { Some(self.read_patch(options, body)?) } else { None };
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let old = existing.value();
            let wanted = match &patch {
                Some(patch) => patch.apply(&SCALE, options, &scale_of(target, &old))?,
                None => self.read_object(&SCALE, options, body)?,
            };
            prepare::check_name(target, &wanted.value)?;
            check_preconditions(&whole, &wanted.value, &old)?;
            let replicas = wanted.value["spec"]["replicas"].as_i64().unwrap_or(0);
            if replicas < 0 {
                let error = schema::FieldError {
                    field: "spec.replicas".to_owned(),
                    cause: schema::Cause::Invalid,
                    detail: format!("Invalid value: {replicas}: must be greater than or equal to 0"),
                };
                return Err(ApiError::invalid(target.resource, name, &[error]));
            }
            let mut object = old.clone();
            object["spec"]["replicas"] = json!(replicas);
            if let Some(changed) = self.store_change(&whole, options, object, &old, existing.revision).await? {
                return Ok(self.accept.write(StatusCode::OK, &scale_of(target, &changed)));
            }
        }
        Err(ApiError::modified(target.resource, name))
    }

    /// Puts a pod on a node, once.
    async fn bind(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let mut binding = self.read_object(&BINDING, options, body)?.value;
        schema::prune(&BINDING, &mut binding);
        let name = target.name.as_deref().unwrap_or("");
        if binding["metadata"]["name"] != name {
            return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
        }
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or("");
        if !namespace.is_empty() && Some(namespace) != target.namespace.as_deref() {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let old = existing.value();
            check_binding(target, &binding, &old)?;
            let object = bound(&binding, &old).map_err(|why| match why {
                Unbound::Invalid(why) => ApiError::bad_request(why),
                Unbound::Conflict(why) => ApiError::conflict_of(target.resource, "binding", name, &why),
            })?;
            if self.replace(target, options, object, &old, existing.revision).await?.is_some() {
                let status =
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                return Ok(self.accept.write(StatusCode::CREATED, &status));
            }
        }
        Err(ApiError::modified(target.resource, name))
    }

    async fn log(&self, target: &Target, options: &Options) -> Answer {
        let pod = self.fetch(target)?.value();
        let name = target.name.as_deref().unwrap_or("");
        let container = pick_container(&pod, name, options.get("container").unwrap_or(""))?;
        if pod["spec"]["nodeName"].as_str().unwrap_or("").is_empty() {
            // As upstream: nobody can have printed anything yet.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let (kubelet, node) = self.kubelet_of(target, &pod)?;
        let namespace = target.namespace.as_deref().unwrap_or("");
        let mut path = format!("/containerLogs/{namespace}/{name}/{container}");
        let passed: Vec<String> = options
            .all
            .iter()
            .filter(|(k, _)| k != "container")
            .map(|(k, v)| format!("{}={}", percent::encoded(k, ":"), percent::encoded(v, ":")))
            .collect();
        if !passed.is_empty() {
            path.push('?');
            path.push_str(&passed.join("&"));
        }
        let invalid = |e: ApiError| ApiError::new(422, "Invalid", format!("PodLogOptions {name:?} is invalid: {e}"));
        kubelet.get(&node, &path).await.map_err(|e| if e.code == 422 { invalid(e) } else { e })
    }

    /// The client for nodes, and the node that a pod is on.
    pub(super) fn kubelet_of(&self, target: &Target, pod: &Value) -> Result<(&KubeletClient, Value), ApiError> {
        let name = target.name.as_deref().unwrap_or("");
        let node = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty());
        let node = node.ok_or_else(|| ApiError::bad_request(format!("pod {name} does not have a host assigned")))?;
        let key = Key { namespace: String::new(), name: node.to_owned() };
        let found = self.api.store().get("nodes", &key);
        let nodes = of_kind("Node").unwrap_or(target.resource);
        let node = found.ok_or_else(|| ApiError::not_found(nodes, node))?.value();
        let kubelet = self.api.inner.kubelet.as_ref();
        Ok((kubelet.ok_or_else(|| ApiError::internal("this server has no credentials for nodes"))?, node))
    }
}

pub(super) fn read(body: &Bytes) -> Result<Value, ApiError> {
    schema::decode(body, ContentType::Json)
        .map(|d| d.value)
        .map_err(|why| ApiError::bad_request(format!("the body cannot be read: {why}")))
}

/// The container that is meant; without a name there must be only one that is neither an init container nor an
/// ephemeral one.
pub(super) fn pick_container(pod: &Value, name: &str, wanted: &str) -> Result<String, ApiError> {
    let names = |key: &str| -> Vec<String> {
        pod["spec"][key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if wanted.is_empty() {
        if let [one] = main.as_slice() {
            return Ok(one.clone());
        }
        let mut why = format!("a container name must be specified for pod {name}, choose one of: [{}]", main.join(" "));
        for (kind, names) in [("init", init), ("ephemeral", ephemeral)] {
            if !names.is_empty() {
                why.push_str(&format!(" or one of the {kind} containers: [{}]", names.join(" ")));
            }
        }
        return Err(ApiError::bad_request(why));
    }
    if main.iter().chain(&init).chain(&ephemeral).any(|n| n == wanted) {
        Ok(wanted.to_owned())
    } else {
        Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")))
    }
}

/// A binding that names a uid or a version is for that pod alone, not for one that has taken its name.
fn check_binding(target: &Target, binding: &Value, pod: &Value) -> Result<(), ApiError> {
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
    for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, is) = (text(binding, field), text(pod, field));
        if !wanted.is_empty() && wanted != is {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is}");
            return Err(ApiError::conflict(target.resource, target.name.as_deref().unwrap_or(""), &why));
        }
    }
    Ok(())
}

/// Why a pod is not bound.
#[derive(Debug, PartialEq, Eq)]
enum Unbound {
    /// The binding itself is wrong.
    Invalid(String),
    /// The pod cannot be bound as it is.
    Conflict(String),
}

/// The pod on the node that a binding names, with the annotations and labels that it brings. Pure, except for the clock.
fn bound(binding: &Value, pod: &Value) -> Result<Value, Unbound> {
    let target = &binding["target"];
    if let Some(kind) = target["kind"].as_str().filter(|kind| !matches!(*kind, "" | "Node")) {
        return Err(Unbound::Invalid(format!(
            "target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\""
        )));
    }
    let Some(node) = target["name"].as_str().filter(|node| !node.is_empty()) else {
        return Err(Unbound::Invalid("target.name: Required value".to_owned()));
    };
    let name = pod["metadata"]["name"].as_str().unwrap_or("");
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Err(Unbound::Conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    if let Some(taken) = pod["spec"]["nodeName"].as_str().filter(|taken| !taken.is_empty()) {
        return Err(Unbound::Conflict(format!("pod {name} is already assigned to node {taken:?}")));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(Unbound::Conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": prepare::now()});
    let mut conditions: Vec<Value> = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|c| c["type"] != "PodScheduled");
    conditions.push(condition);
    pod["status"]["conditions"] = Value::Array(conditions);
    Ok(pod)
}

fn scale_of(target: &Target, object: &Value) -> Value {
    let selector = object["spec"]["selector"].as_object().into_iter().flatten();
    let selector: Vec<String> = selector.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": target.name, "namespace": target.namespace, "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector.join(",")},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_that_is_meant() {
        let pod = json!({"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e"}]}});
        assert_eq!(pick_container(&pod, "p", "").unwrap(), "a");
        for name in ["a", "i", "e"] {
            assert_eq!(pick_container(&pod, "p", name).unwrap(), name);
        }
        assert_eq!(pick_container(&pod, "p", "x").unwrap_err().code, 400);
        let mut two = pod.clone();
        two["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
        assert_eq!(
            pick_container(&two, "p", "").unwrap_err().to_string(),
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i] \
             or one of the ephemeral containers: [e]"
        );
    }
}
