//! `delete` and `deletecollection`: grace, finalizers, preconditions.

use axum::{body::Bytes, http::StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    ApiRequest, ApiResult,
    admission::{namespace_lifecycle, node_restriction::Operation},
    commit::MAX_WRITE_ATTEMPTS,
    error::ApiError,
    read::Selectors,
    request_info::{RequestInfo, RequestOptions},
};
use crate::{
    registry::{GcPolicy, Gvk, ResourceType},
    schema::{self, Cause, ContentType, FieldError},
    store::Expected,
};

const DELETE_OPTIONS: Gvk = Gvk { group: "meta.k8s.io", version: "v1", kind: "DeleteOptions" };

/// How a deletion treats dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PropagationPolicy {
    Orphan,
    Background,
    Foreground,
}

/// The options of a deletion, from body and query.
#[derive(Debug, Clone, Default)]
pub(super) struct DeleteOptions {
    grace: Option<i64>,
    policy: Option<PropagationPolicy>,
    uid: String,
    pub(super) revision: String,
    pub(super) dry_run: bool,
}

impl DeleteOptions {
    pub(super) fn read(options: &RequestOptions, body: &Bytes) -> Result<Self, ApiError> {
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
            ("", Some(true)) | ("Orphan", None) => Some(PropagationPolicy::Orphan),
            ("", Some(false)) | ("Background", None) => Some(PropagationPolicy::Background),
            ("Foreground", None) => Some(PropagationPolicy::Foreground),
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
            // A negative grace period means one second, as for the spec's own.
            grace: grace.map(|grace| if grace < 0 { 1 } else { grace }),
            policy,
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            dry_run: options.dry_run || !dry_run.is_empty(),
        })
    }

    pub(super) fn check(&self, resource: &ResourceType, name: &str, object: &Value) -> Result<(), ApiError> {
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

fn is_non_empty(list: &Value) -> bool {
    list.as_array().is_some_and(|l| !l.is_empty())
}

/// Whether a terminating object can be removed: no finalizers and no grace period are left.
pub(super) fn is_finalized(resource: &ResourceType, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let graceful = resource.gvk.kind == "Pod" && metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|g| g > 0);
    let namespace = resource.gvk.kind == "Namespace" && is_non_empty(&object["spec"]["finalizers"]);
    !metadata["deletionTimestamp"].is_null() && !is_non_empty(&metadata["finalizers"]) && !graceful && !namespace
}

/// The garbage collector's finalizer for a propagation policy; an earlier deletion's policy goes before the default of
/// the type.
fn gc_finalizer(
    resource: &ResourceType,
    finalizers: &[Value],
    policy: Option<PropagationPolicy>,
) -> Option<&'static str> {
    match (resource.gc, policy) {
        (GcPolicy::Unsupported, _) | (_, Some(PropagationPolicy::Background)) => None,
        (_, Some(PropagationPolicy::Orphan)) => Some(ORPHAN),
        (_, Some(PropagationPolicy::Foreground)) => Some(FOREGROUND),
        (default, None) => {
            let earlier = finalizers.iter().find_map(|f| [ORPHAN, FOREGROUND].into_iter().find(|name| f == name));
            earlier.or_else(|| (default == GcPolicy::Orphan).then_some(ORPHAN))
        }
    }
}

/// Sets deletion timestamp, grace period and finalizers, as upstream's `BeforeDelete`. A pending deletion may only be
/// shortened, counted from its first request. Pure.
fn set_deletion_timestamp(resource: &ResourceType, object: &mut Value, options: &DeleteOptions, now: Timestamp) {
    let kind = resource.gvk.kind;
    let metadata = &object["metadata"];
    let begun = metadata["deletionTimestamp"].as_str().map(|at| at.parse::<Timestamp>().unwrap_or(now));
    let pending = metadata["deletionGracePeriodSeconds"].as_i64().filter(|grace| *grace != 0);
    match (begun, pending) {
        (Some(end), Some(pending)) if kind == "Pod" => {
            let pending = pending.max(1);
            match options.grace {
                Some(grace) if grace < pending => set_deletion(object, saturating_add(end, grace - pending), grace),
                // A pending deletion stays as it is: neither its end nor its propagation policy changes.
                _ => return,
            }
        }
        (None, _) if kind == "Pod" => {
            let grace = pod_grace_period(object, options.grace);
            set_deletion(object, saturating_add(now, grace), grace);
            bump_generation(object);
        }
        (None, _) => {
            set_deletion(object, now, 0);
            bump_generation(object);
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

fn saturating_add(at: Timestamp, seconds: i64) -> Timestamp {
    let bound = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(bound)
}

fn set_deletion(object: &mut Value, at: Timestamp, grace: i64) {
    let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
    object["metadata"]["deletionTimestamp"] = json!(at.to_string());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
}

/// A deletion counts as a change of the spec.
fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

/// Upstream's rule: the requested grace period, else the spec's; zero for unscheduled and terminal pods.
fn pod_grace_period(pod: &Value, delete_options: Option<i64>) -> i64 {
    let finalized = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let unscheduled = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    if finalized || unscheduled {
        return 0;
    }
    let grace = delete_options.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    if grace < 0 { 1 } else { grace }
}

impl ApiRequest {
    pub(super) async fn delete(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let delete_options = DeleteOptions::read(options, body)?;
        let resource = info.resource;
        let name = info.name.as_deref().unwrap_or("");
        match self.remove(info, &delete_options).await? {
            DeleteOutcome::Deleted(object) if resource.returns_deleted => {
                Ok(self.accept.object(StatusCode::OK, resource, object, ""))
            }
            DeleteOutcome::Deleted(object) => {
                let uid = object["metadata"]["uid"].clone();
                let mut details = json!({"name": name, "kind": resource.plural, "uid": uid});
                if !resource.gvk.group.is_empty() {
                    details["group"] = json!(resource.gvk.group);
                }
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
                Ok(self.accept.write(StatusCode::OK, &status))
            }
            DeleteOutcome::Terminating(object) => Ok(self.accept.object(StatusCode::OK, resource, object, "")),
        }
    }

    pub(super) async fn remove(
        &self,
        info: &RequestInfo,
        delete_options: &DeleteOptions,
    ) -> Result<DeleteOutcome, ApiError> {
        let resource = info.resource;
        let name = info.name.as_deref().unwrap_or("");
        namespace_lifecycle::admit_delete(resource, name)?;
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let existing = self.fetch(info)?;
            let old = existing.value();
            self.check_node_restriction(Operation::Delete, info, &old, &Value::Null)?;
            delete_options.check(resource, name, &old)?;
            let mut object = old.clone();
            set_deletion_timestamp(resource, &mut object, delete_options, Timestamp::now());
            let finalized = is_finalized(resource, &object);
            if delete_options.dry_run {
                return Ok(if finalized { DeleteOutcome::Deleted(object) } else { DeleteOutcome::Terminating(object) });
            }
            if !finalized && object == old {
                return Ok(DeleteOutcome::Terminating(object));
            }
            let value = if finalized { None } else { Some(object.clone()) };
            match self.api.commit(resource, info.key(), Expected::Revision(existing.revision), value).await? {
                Some(_) if finalized => return Ok(DeleteOutcome::Deleted(object)),
                Some(written) => return Ok(DeleteOutcome::Terminating(written.value())),
                None => {}
            }
        }
        Err(ApiError::modified(resource, name))
    }

    pub(super) async fn delete_collection(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let delete_options = DeleteOptions::read(options, body)?;
        let selectors = Selectors::read(info, options)?;
        let (items, revision) = self.api.store().list(self.api.resource_id(info.resource), info.namespace.as_deref());
        let mut deleted = Vec::new();
        for object in items {
            if !selectors.is_empty() && !selectors.matches(&object.value()) {
                continue;
            }
            let one = RequestInfo {
                namespace: (!object.key.namespace.is_empty()).then(|| object.key.namespace.clone()),
                name: Some(object.key.name.clone()),
                ..info.clone()
            };
            match self.remove(&one, &delete_options).await {
                // As upstream: the objects as they were before.
                Ok(DeleteOutcome::Deleted(_) | DeleteOutcome::Terminating(_)) => deleted.push(object.value()),
                // Deleted concurrently.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let gvk = &info.resource.gvk;
        let list = json!({"kind": format!("{}List", gvk.kind), "apiVersion": gvk.api_version(), "metadata": {"resourceVersion": revision.to_string()}, "items": deleted});
        Ok(self.accept.write(StatusCode::OK, &list))
    }
}

pub(super) enum DeleteOutcome {
    Deleted(Value),
    Terminating(Value),
}
