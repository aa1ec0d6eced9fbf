//! `delete` and `deletecollection`: grace, finalizers, preconditions.

use axum::{body::Bytes, http::StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Answer, Call,
    error::ApiError,
    read::Selectors,
    target::{Options, Target},
};
use crate::{
    registry::ResourceType,
    schema::{self, ContentType},
    store::{Error, Expected, Write},
};

/// Namespaces that the cluster cannot be without.
const KEPT_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];
const TRIES: usize = 8;

/// What a deletion asks for, from the body and the query.
#[derive(Debug, Clone, Default)]
struct DeleteOptions {
    grace: Option<i64>,
    policy: String,
    uid: String,
    revision: String,
    dry_run: bool,
}

impl DeleteOptions {
    fn read(options: &Options, body: &Bytes) -> Result<Self, ApiError> {
        let value = if body.is_empty() {
            Value::Null
        } else {
            schema::decode(body, ContentType::Json)
                .map_err(|why| ApiError::bad_request(format!("the delete options cannot be read: {why}")))?
                .value
        };
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let mut policy = text(&value["propagationPolicy"]);
        if policy.is_empty() {
            options.get("propagationPolicy").unwrap_or("").clone_into(&mut policy);
        }
        let orphan =
            value["orphanDependents"].as_bool().or_else(|| options.get("orphanDependents").map(|o| o == "true"));
        if let (true, Some(orphan)) = (policy.is_empty(), orphan) {
            (if orphan { "Orphan" } else { "Background" }).clone_into(&mut policy);
        }
        if !matches!(policy.as_str(), "" | "Orphan" | "Background" | "Foreground") {
            return Err(ApiError::new(
                422,
                "Invalid",
                format!(
                    "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: {policy:?}: must be \"Foreground\", \"Background\", or \"Orphan\""
                ),
            ));
        }
        let in_query = options
            .get("gracePeriodSeconds")
            .map(|g| g.parse::<i64>().map_err(|_| ApiError::bad_request("gracePeriodSeconds must be a number")));
        Ok(Self {
            grace: value["gracePeriodSeconds"].as_i64().or(in_query.transpose()?),
            policy,
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            dry_run: options.dry_run || value["dryRun"].as_array().is_some_and(|d| d.iter().any(|x| x == "All")),
        })
    }

    fn check(&self, resource: &ResourceType, name: &str, object: &Value) -> Result<(), ApiError> {
        for (what, wanted, is) in [
            ("UID", &self.uid, &object["metadata"]["uid"]),
            ("ResourceVersion", &self.revision, &object["metadata"]["resourceVersion"]),
        ] {
            let is = is.as_str().unwrap_or("");
            if !wanted.is_empty() && wanted != is {
                let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is}");
                return Err(ApiError::conflict(resource, name, &why));
            }
        }
        Ok(())
    }
}

/// Whether nothing holds a deleted object any more.
pub(super) fn is_over(resource: &ResourceType, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let held = |list: &Value| list.as_array().is_some_and(|l| !l.is_empty());
    let graceful = resource.gvk.kind == "Pod" && metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|g| g > 0);
    let namespace = resource.gvk.kind == "Namespace" && held(&object["spec"]["finalizers"]);
    !metadata["deletionTimestamp"].is_null() && !held(&metadata["finalizers"]) && !graceful && !namespace
}

/// The finalizer that a policy asks for.
fn finalizer(resource: &ResourceType, policy: &str) -> Option<&'static str> {
    match policy {
        "Orphan" => Some("orphan"),
        "Foreground" => Some("foregroundDeletion"),
        "" if resource.orphans_by_default => Some("orphan"),
        _ => None,
    }
}

/// Marks an object as being deleted; repeated deletions may only shorten its grace.
fn mark(resource: &ResourceType, object: &mut Value, options: &DeleteOptions) {
    let first = object["metadata"]["deletionTimestamp"].is_null();
    let grace = if resource.gvk.kind == "Pod" { pod_grace(object, options.grace) } else { 0 };
    let current = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(i64::MAX);
    if first || grace < current {
        let at = Timestamp::now().checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
        object["metadata"]["deletionTimestamp"] = json!(at.to_string());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    }
    if first && let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
    let mut finalizers: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if let Some(added) = finalizer(resource, &options.policy) {
        finalizers.retain(|f| f != "orphan" && f != "foregroundDeletion");
        finalizers.push(json!(added));
        object["metadata"]["finalizers"] = Value::Array(finalizers);
    } else if !options.policy.is_empty() {
        finalizers.retain(|f| f != "orphan" && f != "foregroundDeletion");
        if !object["metadata"]["finalizers"].is_null() {
            object["metadata"]["finalizers"] = Value::Array(finalizers);
        }
    }
    if resource.gvk.kind == "Namespace" {
        object["status"]["phase"] = json!("Terminating");
    }
}

/// Upstream's rule: what was asked for, else the spec; nothing for pods that never ran or are over.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let unscheduled = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    if over || unscheduled {
        return 0;
    }
    let grace = asked.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    if grace < 0 { 1 } else { grace }
}

impl Call {
    pub(super) async fn delete(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let asked = DeleteOptions::read(options, body)?;
        let resource = target.resource;
        let name = target.name.as_deref().unwrap_or("");
        match self.remove(target, &asked).await? {
            Removed::Gone(object) => {
                let uid = object["metadata"]["uid"].clone();
                let details = json!({"name": name, "group": resource.gvk.group, "kind": resource.plural, "uid": uid});
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
                Ok(self.accept.write(StatusCode::OK, &status))
            }
            Removed::Lingers(object) => Ok(self.accept.object(StatusCode::OK, resource, object, "")),
        }
    }

    async fn remove(&self, target: &Target, asked: &DeleteOptions) -> Result<Removed, ApiError> {
        let resource = target.resource;
        let name = target.name.as_deref().unwrap_or("");
        if resource.gvk.kind == "Namespace" && KEPT_NAMESPACES.contains(&name) {
            return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
        }
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let old = existing.value();
            asked.check(resource, name, &old)?;
            let mut object = old.clone();
            mark(resource, &mut object, asked);
            let over = is_over(resource, &object);
            if asked.dry_run {
                return Ok(if over { Removed::Gone(object) } else { Removed::Lingers(object) });
            }
            if !over && object == old {
                return Ok(Removed::Lingers(object));
            }
            let key = target.key();
            let value = if over { None } else { Some(object.clone()) };
            let write = Write {
                resource: resource.qualified(),
                key: key.clone(),
                expected: Expected::Revision(existing.revision),
                value,
            };
            match self.api.store().write(write).await {
                Ok(_) if over => return Ok(Removed::Gone(object)),
                Ok(written) => return Ok(Removed::Lingers(written.value())),
                Err(Error::Conflict) => {}
                Err(error) => return Err(ApiError::store(&error)),
            }
        }
        Err(ApiError::modified(resource, name))
    }

    /// The eviction of a pod: a deletion with the options that it carries.
    pub(super) async fn evict(&self, target: &Target, options: &Options, eviction: &Value) -> Answer {
        let body = Bytes::from(serde_json::to_vec(&eviction["deleteOptions"]).unwrap_or_default());
        let body = if eviction["deleteOptions"].is_object() { body } else { Bytes::new() };
        let pod = Target { sub: None, ..target.clone() };
        self.remove(&pod, &DeleteOptions::read(options, &body)?).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(self.accept.write(StatusCode::CREATED, &status))
    }

    pub(super) async fn delete_collection(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let asked = DeleteOptions::read(options, body)?;
        let selectors = Selectors::read(target, options)?;
        let (items, revision) = self.api.store().list(target.resource.qualified(), target.namespace.as_deref());
        let mut deleted = Vec::new();
        for (key, object) in items {
            if !selectors.is_empty() && !selectors.matches(&object.value()) {
                continue;
            }
            let one = Target {
                namespace: (!key.namespace.is_empty()).then_some(key.namespace),
                name: Some(key.name),
                ..target.clone()
            };
            match self.remove(&one, &asked).await {
                Ok(Removed::Gone(object) | Removed::Lingers(object)) => deleted.push(object),
                // Somebody else was faster.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let gvk = &target.resource.gvk;
        let list = json!({"kind": format!("{}List", gvk.kind), "apiVersion": gvk.api_version(), "metadata": {"resourceVersion": revision.to_string()}, "items": deleted});
        Ok(self.accept.write(StatusCode::OK, &list))
    }
}

enum Removed {
    Gone(Value),
    Lingers(Value),
}
