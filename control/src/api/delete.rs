//! `delete` and `deletecollection`: grace, finalizers, preconditions.

use axum::{body::Bytes, http::StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Answer, Call,
    error::ApiError,
    node_restriction::Operation,
    read::Selectors,
    target::{Options, Target},
    write::TRIES,
};
use crate::{
    registry::{GcPolicy, Gvk, ResourceType},
    schema::{self, Cause, ContentType, FieldError},
    store::Expected,
};

/// Namespaces that the cluster cannot be without.
const KEPT_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

const DELETE_OPTIONS: Gvk = Gvk { group: "meta.k8s.io", version: "v1", kind: "DeleteOptions" };

/// What becomes of an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Orphan,
    Background,
    Foreground,
}

/// What a deletion asks for, from the body and the query.
#[derive(Debug, Clone, Default)]
struct DeleteOptions {
    grace: Option<i64>,
    policy: Option<Policy>,
    uid: String,
    revision: String,
    dry_run: bool,
}

impl DeleteOptions {
    fn read(options: &Options, body: &Bytes) -> Result<Self, ApiError> {
        let value = if body.is_empty() {
            Value::Null
        } else {
            let unreadable = |why: String| ApiError::bad_request(format!("the delete options cannot be read: {why}"));
            let value = schema::decode(body, ContentType::Json).map_err(unreadable)?.value;
            let kind = value["kind"].as_str().unwrap_or("");
            if !matches!(kind, "" | "DeleteOptions") {
                return Err(unreadable(format!("they are of kind {kind:?} and not DeleteOptions")));
            }
            let problems = schema::unknown_fields(&DELETE_OPTIONS, &value);
            if !problems.wrong.is_empty() {
                return Err(unreadable(problems.wrong.join(", ")));
            }
            value
        };
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let mut policy = text(&value["propagationPolicy"]);
        if policy.is_empty() {
            options.get("propagationPolicy").unwrap_or("").clone_into(&mut policy);
        }
        let orphan =
            value["orphanDependents"].as_bool().or_else(|| options.get("orphanDependents").map(|o| o == "true"));
        let invalid = |cause: Cause, detail: String| {
            let error = FieldError { field: "propagationPolicy".to_owned(), cause, detail };
            Err(ApiError::invalid_options("DeleteOptions", &[error]))
        };
        let policy = match (policy.as_str(), orphan) {
            ("", None) => None,
            ("", Some(true)) | ("Orphan", None) => Some(Policy::Orphan),
            ("", Some(false)) | ("Background", None) => Some(Policy::Background),
            ("Foreground", None) => Some(Policy::Foreground),
            ("Orphan" | "Background" | "Foreground", Some(_)) => {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                return invalid(Cause::Invalid, format!("Invalid value: {policy:?}: {why}"));
            }
            _ => {
                let why = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
                return invalid(Cause::NotSupported, format!("Unsupported value: {policy:?}: {why}"));
            }
        };
        let in_query = options
            .get("gracePeriodSeconds")
            .map(|g| g.parse::<i64>().map_err(|_| ApiError::bad_request("gracePeriodSeconds must be a number")));
        let grace = value["gracePeriodSeconds"].as_i64().or(in_query.transpose()?);
        let dry_run = value["dryRun"].as_array().cloned().unwrap_or_default();
        if dry_run.iter().any(|stage| stage != "All") {
            let detail = format!("Unsupported value: {}: supported values: \"All\"", value["dryRun"]);
            let error = FieldError { field: "dryRun".to_owned(), cause: Cause::NotSupported, detail };
            return Err(ApiError::invalid_options("DeleteOptions", &[error]));
        }
        Ok(Self {
            // Less than nothing means as soon as possible, as for the spec's own period.
            grace: grace.map(|grace| if grace < 0 { 1 } else { grace }),
            policy,
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            dry_run: options.dry_run || !dry_run.is_empty(),
        })
    }

    fn check(&self, resource: &ResourceType, name: &str, object: &Value) -> Result<(), ApiError> {
        let is = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        for (what, wanted, is, hint) in [
            ("UID", &self.uid, is("uid"), "The object might have been deleted and then recreated"),
            ("ResourceVersion", &self.revision, is("resourceVersion"), "The object might have been modified"),
        ] {
            if !wanted.is_empty() && *wanted != is {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). {hint}"
                );
                return Err(ApiError::precondition(resource, name, &why));
            }
        }
        Ok(())
    }
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

fn is_held(list: &Value) -> bool {
    list.as_array().is_some_and(|l| !l.is_empty())
}

/// Whether nothing holds a deleted object any more.
pub(super) fn is_over(resource: &ResourceType, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let graceful = resource.gvk.kind == "Pod" && metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|g| g > 0);
    let namespace = resource.gvk.kind == "Namespace" && is_held(&object["spec"]["finalizers"]);
    !metadata["deletionTimestamp"].is_null() && !is_held(&metadata["finalizers"]) && !graceful && !namespace
}

/// The finalizer by which the garbage collector does what is asked with the dependents; what an earlier deletion has
/// asked goes before the default of the type.
fn gc_finalizer(resource: &ResourceType, finalizers: &[Value], policy: Option<Policy>) -> Option<&'static str> {
    match (resource.gc, policy) {
        (GcPolicy::Unsupported, _) | (_, Some(Policy::Background)) => None,
        (_, Some(Policy::Orphan)) => Some(ORPHAN),
        (_, Some(Policy::Foreground)) => Some(FOREGROUND),
        (default, None) => {
            let earlier = finalizers.iter().find_map(|f| [ORPHAN, FOREGROUND].into_iter().find(|name| f == name));
            earlier.or_else(|| (default == GcPolicy::Orphan).then_some(ORPHAN))
        }
    }
}

/// Marks an object as being deleted, as upstream's `BeforeDelete` does. A deletion that is under way may only be made
/// shorter, counted from when it began. Pure.
fn mark(resource: &ResourceType, object: &mut Value, options: &DeleteOptions, now: Timestamp) {
    let kind = resource.gvk.kind;
    let metadata = &object["metadata"];
    let begun = metadata["deletionTimestamp"].as_str().map(|at| at.parse::<Timestamp>().unwrap_or(now));
    let pending = metadata["deletionGracePeriodSeconds"].as_i64().filter(|grace| *grace != 0);
    match (begun, pending) {
        (Some(end), Some(pending)) if kind == "Pod" => {
            let pending = pending.max(1);
            match options.grace {
                Some(grace) if grace < pending => set_end(object, after(end, grace - pending), grace),
                // It is under way; nothing changes, neither when it ends nor what becomes of dependents.
                _ => return,
            }
        }
        (None, _) if kind == "Pod" => {
            let grace = pod_grace(object, options.grace);
            set_end(object, after(now, grace), grace);
            bump(object);
        }
        (None, _) => {
            set_end(object, now, 0);
            bump(object);
        }
        (Some(_), _) => {}
    }
    let mut finalizers: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let wanted = gc_finalizer(resource, &finalizers, options.policy);
    let before = finalizers.clone();
    finalizers.retain(|f| (f != ORPHAN && f != FOREGROUND) || wanted.is_some_and(|w| f == w));
    if let Some(wanted) = wanted.filter(|wanted| !finalizers.iter().any(|f| f == wanted)) {
        finalizers.push(json!(wanted));
    }
    if finalizers != before {
        object["metadata"]["finalizers"] = Value::Array(finalizers);
    }
    if kind == "Namespace" {
        object["status"]["phase"] = json!("Terminating");
    }
}

fn after(at: Timestamp, seconds: i64) -> Timestamp {
    let bound = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(bound)
}

fn set_end(object: &mut Value, at: Timestamp, grace: i64) {
    let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
    object["metadata"]["deletionTimestamp"] = json!(at.to_string());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
}

/// The beginning of a deletion counts as a change of the spec.
fn bump(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
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

/// A pod with the condition that the eviction API gives it. Pure.
fn disrupted(pod: &Value, now: Timestamp) -> Value {
    const TYPE: &str = "DisruptionTarget";
    let mut pod = pod.clone();
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let mut condition = json!({
        "type": TYPE, "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        "lastTransitionTime": at,
    });
    match conditions.iter_mut().find(|condition| condition["type"] == TYPE) {
        Some(before) => {
            if before["status"] == "True" {
                condition["lastTransitionTime"] = before["lastTransitionTime"].take();
            }
            *before = condition;
        }
        None => conditions.push(condition),
    }
    pod["status"]["conditions"] = Value::Array(conditions);
    pod
}

impl Call {
    pub(super) async fn delete(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let asked = DeleteOptions::read(options, body)?;
        let resource = target.resource;
        let name = target.name.as_deref().unwrap_or("");
        match self.remove(target, &asked).await? {
            Removed::Gone(object) if resource.returns_deleted => {
                Ok(self.accept.object(StatusCode::OK, resource, object, ""))
            }
            Removed::Gone(object) => {
                let uid = object["metadata"]["uid"].clone();
                let mut details = json!({"name": name, "kind": resource.plural, "uid": uid});
                if !resource.gvk.group.is_empty() {
                    details["group"] = json!(resource.gvk.group);
                }
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
            self.restrict(Operation::Delete, target, &old, &Value::Null)?;
            asked.check(resource, name, &old)?;
            let mut object = old.clone();
            mark(resource, &mut object, asked, Timestamp::now());
            let over = is_over(resource, &object);
            if asked.dry_run {
                return Ok(if over { Removed::Gone(object) } else { Removed::Lingers(object) });
            }
            if !over && object == old {
                return Ok(Removed::Lingers(object));
            }
            let value = if over { None } else { Some(object.clone()) };
            match self.api.commit(resource, target.key(), Expected::Revision(existing.revision), value).await? {
                Some(_) if over => return Ok(Removed::Gone(object)),
                Some(written) => return Ok(Removed::Lingers(written.value())),
                None => {}
            }
        }
        Err(ApiError::modified(resource, name))
    }

    /// The eviction of a pod: a deletion with the options that it carries.
    pub(super) async fn evict(&self, target: &Target, options: &Options, eviction: &Value) -> Answer {
        let body = Bytes::from(serde_json::to_vec(&eviction["deleteOptions"]).unwrap_or_default());
        let body = if eviction["deleteOptions"].is_object() { body } else { Bytes::new() };
        let named = eviction["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        if named.is_some_and(|name| target.name.as_deref() != Some(name)) {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        self.restrict(Operation::Create, target, &self.fetch(target)?.value(), eviction)?;
        let pod = Target { sub: None, ..target.clone() };
        let mut asked = DeleteOptions::read(options, &body)?;
        if !asked.dry_run {
            self.disrupt(&pod, options, &asked).await?;
            // The revision that was asked for was that before the condition.
            asked.revision.clear();
        }
        self.remove(&pod, &asked).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(self.accept.write(StatusCode::CREATED, &status))
    }

    /// Writes into a pod's status that its end is none of its own; a write of its own, as upstream's.
    async fn disrupt(&self, target: &Target, options: &Options, asked: &DeleteOptions) -> Result<(), ApiError> {
        let name = target.name.as_deref().unwrap_or("");
        for _ in 0..TRIES {
            let existing = self.fetch(target)?;
            let old = existing.value();
            asked.check(target.resource, name, &old)?;
            let object = disrupted(&old, Timestamp::now());
            if self.replace(target, options, object, &old, existing.revision).await?.is_some() {
                return Ok(());
            }
        }
        Err(ApiError::modified(target.resource, name))
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
                // As they were before, as upstream.
                Ok(Removed::Gone(_) | Removed::Lingers(_)) => deleted.push(object.value()),
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
