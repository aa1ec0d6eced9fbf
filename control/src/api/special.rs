//! The subresources that one kind has for itself: scale, binding, eviction, logs, finalize.

use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};
use windlass_kit::percent;

use super::{
    Answer, Call, KubeletClient,
    connect::SUBRESOURCES,
    error::ApiError,
    prepare,
    target::{Options, Target},
};
use crate::{
    patch::{self, PatchKind},
    registry::of_kind,
    schema::{self, ContentType},
    store::Key,
};

const TRIES: usize = 8;

impl Call {
    pub(super) async fn special(&self, verb: &str, target: &Target, options: &Options, body: &Bytes) -> Answer {
        match (target.sub.as_deref(), verb) {
            (Some("scale"), "get") => {
                Ok(self.accept.write(StatusCode::OK, &scale_of(target, &self.fetch(target)?.value())))
            }
            (Some("scale"), "update" | "patch") => self.scale(target, options, body).await,
            (Some("binding"), "create") => self.bind(target, options, body).await,
            (Some("eviction"), "create") => self.evict(target, options, &read(body)?).await,
            (Some("finalize"), "update") => self.finalize(target, options, body).await,
            (Some("token"), "create") => self.token(target, options, body).await,
            (Some("log"), "get") => self.log(target, options).await,
            (Some(sub), "get" | "create") if SUBRESOURCES.contains(&sub) => self.connect(target, options).await,
            _ => Err(target.not_allowed(&self.method)),
        }
    }

    async fn scale(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let whole = Target { sub: None, ..target.clone() };
        let name = target.name.as_deref().unwrap_or("");
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let old = existing.value();
            let before = scale_of(target, &old);
            let wanted = if self.method == "PATCH" {
                let kind = if self.content_type.contains("json-patch") { PatchKind::Json } else { PatchKind::Merge };
                patch::apply(kind, &before, &read(body)?).map_err(|e| ApiError::bad_request(e.to_string()))?
            } else {
                read(body)?
            };
            let pinned = wanted["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty());
            if pinned.is_some_and(|v| v != existing.revision.to_string()) {
                return Err(ApiError::modified(target.resource, name));
            }
            let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
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
        let binding = read(body)?;
        let node = binding["target"]["name"].as_str().filter(|n| !n.is_empty());
        let node = node.ok_or_else(|| ApiError::bad_request("target.name: Required value: a binding names a node"))?;
        let name = target.name.as_deref().unwrap_or("");
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let mut object = existing.value();
            let why = if !object["metadata"]["deletionTimestamp"].is_null() {
                Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
            } else {
                let taken = object["spec"]["nodeName"].as_str().filter(|n| !n.is_empty());
                taken.map(|taken| format!("pod {name} is already assigned to node {taken:?}"))
            };
            if let Some(why) = why {
                return Err(ApiError::conflict(target.resource, name, &why));
            }
            object["spec"]["nodeName"] = json!(node);
            let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": prepare::now()});
            let mut conditions: Vec<Value> = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.retain(|c| c["type"] != "PodScheduled");
            conditions.push(condition);
            object["status"]["conditions"] = Value::Array(conditions);
            if self.put(target, options, object, existing.revision).await? {
                let status =
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                return Ok(self.accept.write(StatusCode::CREATED, &status));
            }
        }
        Err(ApiError::modified(target.resource, name))
    }

    /// Takes `kubernetes` out of a namespace's finalizers, which ends it.
    async fn finalize(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let wanted = read(body)?;
        let name = target.name.as_deref().unwrap_or("");
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let mut object = existing.value();
            object["spec"]["finalizers"] = wanted["spec"].get("finalizers").cloned().unwrap_or_else(|| json!([]));
            if self.put(target, options, object.clone(), existing.revision).await? {
                return Ok(self.accept.write(StatusCode::OK, &object));
            }
        }
        Err(ApiError::modified(target.resource, name))
    }

    /// Stores an object that the server itself has changed; `false` when somebody was faster.
    async fn put(&self, target: &Target, options: &Options, object: Value, revision: u64) -> Result<bool, ApiError> {
        use crate::store::{Error, Expected, Write};
        if options.dry_run {
            return Ok(true);
        }
        let value = (!super::delete::is_over(target.resource, &object)).then_some(object);
        let write = Write {
            resource: target.resource.qualified(),
            key: target.key(),
            expected: Expected::Revision(revision),
            value,
        };
        match self.api.store().write(write).await {
            Ok(_) => Ok(true),
            Err(Error::Conflict) => Ok(false),
            Err(error) => Err(ApiError::store(&error)),
        }
    }

    async fn log(&self, target: &Target, options: &Options) -> Answer {
        let pod = self.fetch(target)?.value();
        let name = target.name.as_deref().unwrap_or("");
        let container = pick_container(&pod, name, options.get("container").unwrap_or(""))?;
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

/// The container whose log is meant; without a name there must be only one.
pub(super) fn pick_container(pod: &Value, name: &str, wanted: &str) -> Result<String, ApiError> {
    let names = |key: &str| -> Vec<String> {
        pod["spec"][key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (main, init) = (names("containers"), names("initContainers"));
    if wanted.is_empty() {
        return match main.as_slice() {
            [one] if init.is_empty() => Ok(one.clone()),
            _ => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                [main, init].concat().join(" ")
            ))),
        };
    }
    let known =
        main.iter().chain(&init).any(|n| n == wanted) || names("ephemeralContainers").iter().any(|n| n == wanted);
    if known {
        Ok(wanted.to_owned())
    } else {
        Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")))
    }
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
