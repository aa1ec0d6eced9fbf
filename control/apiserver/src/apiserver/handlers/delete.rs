//! `delete` and `deletecollection`: grace, finalizers, preconditions.

use axum::{body::Bytes, http::StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::read::Selectors;
use crate::apiserver::{
    pipeline::{
        admission::{Operation, WriteOptions},
        metadata::is_finalized,
        stages::{Draft, Mutated, Mutation, Scope},
        validation::{Cause, FieldError},
    },
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::{RequestOptions, go_int},
        target::Target,
    },
    types::{FirstDeletion, GcPolicy, TypeSchema, Version},
};

/// How a deletion treats dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PropagationPolicy {
    Orphan,
    Background,
    Foreground,
}

/// The options of a deletion, from body and query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    grace: Option<i64>,
    policy: Option<PropagationPolicy>,
    /// What the client has said of `orphanDependents`, the older form of the policy.
    orphans: Option<bool>,
    uid: String,
    pub(crate) revision: String,
    pub(crate) dry_run: bool,
    /// As they came, for webhooks.
    sent: Value,
}

fn unreadable(why: &str) -> ApiError {
    ApiError::bad_request(format!("the delete options cannot be read: {why}"))
}

impl DeleteOptions {
    /// The options in another object, which was decoded with it.
    pub(crate) fn read(schema: &TypeSchema, options: &RequestOptions, value: &Value) -> Result<Self, ApiError> {
        let value = if value.is_object() { value } else { &Value::Null };
        Self::check_fields(schema, value)?;
        Self::of(value, options.dry_run)
    }

    /// The options in the query, in the form of a body.
    fn in_query(options: &RequestOptions) -> Result<Value, ApiError> {
        let grace = options.get("gracePeriodSeconds").map(go_int).transpose()?;
        Ok(json!({
            "gracePeriodSeconds": grace,
            "orphanDependents": options.flag("orphanDependents"),
            "propagationPolicy": options.get("propagationPolicy"),
        }))
    }

    fn check_fields(schema: &TypeSchema, value: &Value) -> Result<(), ApiError> {
        let kind = value["kind"].as_str().unwrap_or("");
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(unreadable(&format!("they are of kind {kind:?} and not DeleteOptions")));
        }
        let problems = schema.check(value);
        if problems.wrong.is_empty() { Ok(()) } else { Err(unreadable(&problems.wrong.join(", "))) }
    }

    fn of(value: &Value, is_dry_run: bool) -> Result<Self, ApiError> {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let policy = text(&value["propagationPolicy"]);
        let orphans = value["orphanDependents"].as_bool();
        let invalid = |cause: Cause, detail: String| {
            let error = FieldError { field: "propagationPolicy".to_owned(), cause, detail };
            Err(ApiError::invalid_options("DeleteOptions", &[error]))
        };
        let policy = match (policy.as_str(), orphans) {
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
        let grace = value["gracePeriodSeconds"].as_i64();
        let dry_run = value["dryRun"].as_array().cloned().unwrap_or_default();
        if dry_run.iter().any(|stage| stage != "All") {
            let detail = format!("Unsupported value: {}: supported values: \"All\"", value["dryRun"]);
            let error = FieldError { field: "dryRun".to_owned(), cause: Cause::NotSupported, detail };
            return Err(ApiError::invalid_options("DeleteOptions", &[error]));
        }
        let is_dry_run = is_dry_run || !dry_run.is_empty();
        let mut sent = value.clone();
        if let Some(fields) = sent.as_object_mut() {
            fields.retain(|_, field| !field.is_null());
        }
        if is_dry_run {
            sent["dryRun"] = json!(["All"]);
        }
        Ok(Self {
            // A negative grace period means one second, as for the spec's own.
            grace: grace.map(|grace| if grace < 0 { 1 } else { grace }),
            policy,
            orphans,
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            dry_run: is_dry_run,
            sent: if sent.is_object() { sent } else { json!({}) },
        })
    }

    pub(crate) fn check(&self, version: &Version, name: &str, object: &Value) -> Result<(), ApiError> {
        let is = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        for (what, wanted, is, hint) in [
            ("UID", &self.uid, is("uid"), "The object might have been deleted and then recreated"),
            ("ResourceVersion", &self.revision, is("resourceVersion"), "The object might have been modified"),
        ] {
            if !wanted.is_empty() && *wanted != is {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). {hint}"
                );
                return Err(ApiError::precondition(version, name, &why));
            }
        }
        Ok(())
    }
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The garbage collector's finalizer for a propagation policy; an earlier deletion's policy takes precedence over the
/// default of the type.
fn gc_finalizer(version: &Version, finalizers: &[Value], policy: Option<PropagationPolicy>) -> Option<&'static str> {
    match (version.gc, policy) {
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
fn set_deletion_timestamp(version: &Version, object: &mut Value, options: &DeleteOptions, now: Timestamp) {
    let graceful = version.strategy.grace_period(object, options.grace);
    let metadata = &object["metadata"];
    let begun = metadata["deletionTimestamp"].as_str().map(|at| at.parse::<Timestamp>().unwrap_or(now));
    let pending = metadata["deletionGracePeriodSeconds"].as_i64().filter(|grace| *grace != 0);
    match (begun, pending, graceful) {
        (Some(end), Some(pending), Some(_)) => {
            let pending = pending.max(1);
            match options.grace {
                Some(grace) if grace < pending => {
                    let end = saturating_add(end, grace - pending);
                    // What is over already ends now: of the grace period no more than a second is left.
                    let (end, grace) = if end < now { (now, grace.min(1)) } else { (end, grace) };
                    set_deletion(object, end, grace);
                }
                // A pending deletion stays as it is: neither its end nor its propagation policy changes.
                _ => return,
            }
        }
        (None, _, graceful) => match version.strategy.first_deletion() {
            FirstDeletion::Graceful => {
                let grace = graceful.unwrap_or(0);
                set_deletion(object, saturating_add(now, grace), grace);
                bump_generation(object);
            }
            first => {
                object["metadata"]["deletionTimestamp"] = json!(in_seconds(now).to_string());
                if first == FirstDeletion::MarksAlone {
                    version.strategy.begin_deletion(object);
                    return;
                }
            }
        },
        (Some(_), ..) => {}
    }
    let mut finalizers: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let wanted = gc_finalizer(version, &finalizers, options.policy);
    let before = finalizers.clone();
    finalizers.retain(|f| (f != ORPHAN && f != FOREGROUND) || wanted.is_some_and(|w| f == w));
    if let Some(wanted) = wanted.filter(|wanted| !finalizers.iter().any(|f| f == wanted)) {
        finalizers.push(json!(wanted));
    }
    if finalizers != before {
        object["metadata"]["finalizers"] = Value::Array(finalizers);
    }
    version.strategy.begin_deletion(object);
}

fn saturating_add(at: Timestamp, seconds: i64) -> Timestamp {
    let bound = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(bound)
}

/// A time as metadata has it.
fn in_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn set_deletion(object: &mut Value, at: Timestamp, grace: i64) {
    object["metadata"]["deletionTimestamp"] = json!(in_seconds(at).to_string());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
}

/// A deletion counts as a change of the spec.
fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

impl ApiRequest {
    /// The options of a deletion, which are recorded as its object.
    fn delete_options(&self, options: &RequestOptions, body: &Bytes) -> Result<DeleteOptions, ApiError> {
        let schema = self.api.delete_options_schema();
        // The body may be empty, whatever its type is then.
        if body.is_empty() {
            return DeleteOptions::of(&DeleteOptions::in_query(options)?, options.dry_run);
        }
        // As upstream the query is not read where there is a body, but for the word that nothing shall be deleted.
        let value = self.decode(schema, body)?.map_err(|why| unreadable(&why))?.value;
        DeleteOptions::check_fields(schema, &value)?;
        if let Some(fields) = value.as_object() {
            let mut recorded = fields.clone();
            recorded.insert("kind".to_owned(), json!("DeleteOptions"));
            // Upstream has converted them by then.
            recorded.insert("apiVersion".to_owned(), json!("meta.k8s.io/__internal"));
            self.audit.request_body(&Value::Object(recorded));
        }
        DeleteOptions::of(&value, options.dry_run)
    }

    /// Warns a client that says nothing of dependents, where that means what users do not expect.
    fn warn_of_deletion(&self, version: &Version, options: &DeleteOptions) {
        let warning = version.strategy.deletion_warning().filter(|_| options.policy.is_none());
        self.warnings.extend(warning.map(str::to_owned));
    }

    pub(in crate::apiserver) async fn delete(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let delete_options = self.delete_options(options, body)?;
        self.warn_of_deletion(&target.version, &delete_options);
        let deleted = self.remove(target, &delete_options).await?;
        self.answer_deleted(target, &delete_options, deleted).await
    }

    async fn answer_deleted(&self, target: &Target, options: &DeleteOptions, deleted: Mutated) -> ApiResult {
        let version = &target.version;
        // As upstream does for the older form of the policy alone, for the sake of clients that know no other code.
        let begun = if options.orphans == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
        match deleted {
            Mutated::Deleted(object) if version.returns_deleted => {
                Ok(self.accept.object(StatusCode::OK, version, object, ""))
            }
            Mutated::Deleted(object) => {
                let uid = object["metadata"]["uid"].clone();
                let mut details = json!({"name": target.name(), "kind": version.plural, "uid": uid});
                if !version.gvk.group.is_empty() {
                    details["group"] = json!(version.gvk.group);
                }
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
                Ok(self.accept.write(StatusCode::OK, &status))
            }
            Mutated::Stored(object) => self.answer_stored(begun, version, &object, "").await,
            Mutated::Drafted(object) => Ok(self.accept.object(begun, version, object, "")),
        }
    }

    /// Deletes an object, or begins its deletion.
    pub(crate) async fn remove(&self, target: &Target, options: &DeleteOptions) -> Result<Mutated, ApiError> {
        self.remove_in(Scope::Object, target, options).await
    }

    /// The same for what admission has seen in another form: an eviction.
    pub(crate) async fn remove_admitted(&self, target: &Target, options: &DeleteOptions) -> Result<Mutated, ApiError> {
        self.remove_in(Scope::Server, target, options).await
    }

    async fn remove_in(&self, scope: Scope<'_>, target: &Target, options: &DeleteOptions) -> Result<Mutated, ApiError> {
        let version = &target.version;
        let make = |old: Option<&Value>| {
            let old = old.unwrap_or(&Value::Null);
            options.check(version, target.name(), old)?;
            let mut object = old.clone();
            set_deletion_timestamp(version, &mut object, options, Timestamp::now());
            if !is_finalized(version, &object) {
                return Ok(Draft::Write(object));
            }
            // An object that is removed at once is returned as it was; for graceful types, upstream first sets its
            // deletion time.
            let graceful = version.strategy.grace_period(old, options.grace).is_some();
            Ok(Draft::Remove(if graceful { object } else { old.clone() }))
        };
        let mutation = Mutation {
            target,
            operation: Operation::Delete,
            scope,
            options: WriteOptions::Body(&options.sent),
            manager: None,
            presented: None,
            make: &make,
        };
        self.mutate(mutation).await
    }

    pub(in crate::apiserver) async fn delete_collection(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let delete_options = self.delete_options(options, body)?;
        self.warn_of_deletion(&target.version, &delete_options);
        let selectors = Selectors::read(target, options)?;
        let (snapshot, after) = self.listed(target, options)?;
        let page = self.page_of(target, options, &selectors, &snapshot, after.as_ref()).await?;
        for object in &page.objects {
            let key = object.key.clone();
            let one = Target {
                namespace: (!key.namespace.is_empty()).then_some(key.namespace),
                name: Some(key.name),
                ..target.clone()
            };
            match self.remove(&one, &delete_options).await {
                Ok(_) => {}
                // Deleted concurrently.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        // As upstream: the objects as they were before.
        self.answer_page(&target.version, options, page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_not_moved_into_the_past() {
        let pod = crate::apiserver::tests::version("Pod");
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let at = |seconds: i64| saturating_add(start, seconds).to_string();
        let spec = json!({"nodeName": "n", "terminationGracePeriodSeconds": 30});
        // The shorter grace, the second when it is asked for, and what is left then.
        for (grace, second, end, left) in
            [(10, 5, 10, 10), (6, 5, 6, 6), (3, 5, 5, 1), (1, 40, 40, 1), (0, 5, 5, 0), (30, 5, 30, 30)]
        {
            let mut object = json!({"metadata": {"name": "p", "generation": 1}, "spec": spec});
            set_deletion_timestamp(&pod, &mut object, &DeleteOptions::default(), start);
            let shorter = DeleteOptions { grace: Some(grace), ..DeleteOptions::default() };
            set_deletion_timestamp(&pod, &mut object, &shorter, saturating_add(start, second));
            let metadata = &object["metadata"];
            assert_eq!(metadata["deletionTimestamp"], at(end), "{grace} after {second}");
            assert_eq!(metadata["deletionGracePeriodSeconds"], left, "{grace} after {second}");
        }
    }

    /// Upstream: `Delete` of the registries of both.
    #[test]
    fn the_end_of_a_definition_does_not_wait_for_dependents() {
        let now = Timestamp::UNIX_EPOCH;
        let options = DeleteOptions { policy: Some(PropagationPolicy::Foreground), ..DeleteOptions::default() };
        for (kind, finalizers) in [
            ("CustomResourceDefinition", json!(["customresourcecleanup.apiextensions.k8s.io"])),
            ("Namespace", json!([FOREGROUND])),
        ] {
            let mut object = json!({"metadata": {"name": "x", "generation": 1}});
            set_deletion_timestamp(&crate::apiserver::tests::version(kind), &mut object, &options, now);
            let metadata = json!({"name": "x", "generation": 1, "deletionTimestamp": "1970-01-01T00:00:00Z",
                "finalizers": finalizers});
            assert_eq!(object["metadata"], metadata, "{kind}");
        }
    }
}
