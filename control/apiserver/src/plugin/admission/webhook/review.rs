//! AdmissionReview: what a webhook is sent, and what it answers. Pure.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/request` and `errors`.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    configuration::Webhook,
    matching::{Invocation, Shown, kind_in},
};
use crate::{
    apiserver::{AdmissionAttributes, ApiError, User, types::Version},
    webhook::ReviewVersion,
};

const GROUP: &str = "admission.k8s.io";
const KIND: &str = "AdmissionReview";

/// The review of a request.
pub(super) fn request(
    uid: &str,
    version: ReviewVersion,
    attributes: &AdmissionAttributes<'_>,
    invocation: &Invocation,
) -> Value {
    let shown = &invocation.shown;
    let mut request = request_of(attributes, &invocation.version, shown);
    request["uid"] = json!(uid);
    request["object"] = shown.object.clone();
    request["oldObject"] = shown.old.clone();
    json!({"kind": KIND, "apiVersion": version.api_version(GROUP), "request": request})
}

/// What a review says of a request besides its objects, which expressions see as well. `matched` is the version in which a rule
/// names the resource.
pub(in crate::plugin::admission) fn request_of(
    attributes: &AdmissionAttributes<'_>,
    matched: &Version,
    shown: &Shown,
) -> Value {
    let target = attributes.target;
    let kind_of = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let resource_of =
        |group: &str, version: &str, resource: &str| json!({"group": group, "version": version, "resource": resource});
    let asked = &target.version;
    let (kind, request_kind) = (kind_in(target, matched), kind_in(target, asked));
    let mut request = json!({
        "kind": kind_of(&kind.group, &kind.version, &kind.kind),
        "resource": resource_of(&matched.gvk.group, &matched.gvk.version, &matched.plural),
        "requestKind": kind_of(&request_kind.group, &request_kind.version, &request_kind.kind),
        "requestResource": resource_of(&asked.gvk.group, &asked.gvk.version, &asked.plural),
        "operation": attributes.operation.name(),
        "userInfo": user_info(attributes.user),
        "dryRun": attributes.options.are_of_dry_run(),
        "options": attributes.options_object(),
    });
    for (field, text) in [
        ("subResource", target.subresource()),
        ("requestSubResource", target.subresource()),
        ("name", shown.name.as_str()),
        ("namespace", shown.namespace.as_str()),
    ] {
        if !text.is_empty() {
            request[field] = json!(text);
        }
    }
    request
}

fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".to_owned(), json!(user.name));
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

/// What a webhook has answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) allowed: bool,
    /// The operations of a JSON patch; empty for no change.
    pub(super) patch: Vec<Value>,
    /// Why the request is refused.
    pub(super) status: Option<Value>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    response: Option<Response>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    status: Option<Value>,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    patch_type: Option<String>,
    #[serde(default)]
    audit_annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

/// Reads an answer.
///
/// # Errors
/// When it is none to the review of this uid, in upstream's words.
pub(super) fn answer(body: &[u8], uid: &str, version: ReviewVersion, mutates: bool) -> Result<Answer, AnswerError> {
    let review: Review = serde_json::from_slice(body).map_err(|error| AnswerError::Unreadable(error.to_string()))?;
    let invalid = |why: String| Err(AnswerError::Invalid(why));
    let Some(response) = review.response else { return invalid("webhook response was absent".to_owned()) };
    let patch = response.patch.unwrap_or_default();
    let patch = STANDARD.decode(&patch).map_err(|error| AnswerError::Unreadable(error.to_string()))?;
    if version == ReviewVersion::V1 {
        version.check_uid(uid, &response.uid).map_err(AnswerError::Invalid)?;
        version.check_type((GROUP, KIND), &review.api_version, &review.kind).map_err(AnswerError::Invalid)?;
        check_patch(&patch, response.patch_type.as_deref(), mutates)
            .map_err(|why| AnswerError::Invalid(why.to_owned()))?;
    }
    let patch = if mutates { operations(&patch)? } else { Vec::new() };
    if let Some(other) = response.patch_type.filter(|kind| kind != "JSONPatch" && !patch.is_empty()) {
        return Err(AnswerError::UnsupportedPatch(other));
    }
    Ok(Answer {
        allowed: response.allowed,
        patch,
        status: response.status,
        annotations: response.audit_annotations.unwrap_or_default(),
        warnings: response.warnings.unwrap_or_default(),
    })
}

fn check_patch(patch: &[u8], kind: Option<&str>, mutates: bool) -> Result<(), &'static str> {
    match (mutates, patch.is_empty(), kind) {
        (true, false, None) => Err("webhook returned response.patch but not response.patchType"),
        (true, true, Some(_)) => Err("webhook returned response.patchType but not response.patch"),
        (true, false, Some("")) => Err("webhook returned invalid response.patchType of \"\""),
        (false, false, _) => Err("validating webhook may not return response.patch"),
        (false, true, Some(_)) => Err("validating webhook may not return response.patchType"),
        _ => Ok(()),
    }
}

fn operations(patch: &[u8]) -> Result<Vec<Value>, AnswerError> {
    if patch.is_empty() {
        return Ok(Vec::new());
    }
    let operations: Option<Vec<Value>> =
        serde_json::from_slice(patch).map_err(|error| AnswerError::UndecodablePatch(error.to_string()))?;
    Ok(operations.unwrap_or_default())
}

/// What is wrong with an answer, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("failed to call webhook: {0}")]
    Unreadable(String),
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
    #[error("received undecodable patch in webhook response: {0}")]
    UndecodablePatch(String),
    #[error("unsupported patch type {0:?}")]
    UnsupportedPatch(String),
}

/// The refusal of a request by a webhook.
pub(super) fn rejection(webhook: &Webhook, status: Option<&Value>) -> ApiError {
    let none = Value::Null;
    let status = status.unwrap_or(&none);
    let text = |field: &str| status[field].as_str().filter(|text| !text.is_empty());
    let denied = format!("admission webhook {:?} denied the request", webhook.name);
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
    let error = ApiError::new(code.unwrap_or(400), text("reason").unwrap_or("").to_owned(), message);
    if status["details"].is_object() { error.with_details(status["details"].clone()) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(answer: Value, version: ReviewVersion, mutates: bool) -> String {
        super::answer(answer.to_string().as_bytes(), "u", version, mutates).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn answers_that_do_not_answer_are_refused() {
        let v1 = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        let invalid = "received invalid webhook response: ";
        for (review, mutates, wanted) in [
            (v1(Value::Null), true, "webhook response was absent"),
            (v1(json!({"uid": "w", "allowed": true})), true, "expected response.uid=\"u\", got \"w\""),
            (
                json!({"response": {"uid": "u", "allowed": true}}),
                true,
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
            ),
            (
                v1(json!({"uid": "u", "patch": "W10="})),
                true,
                "webhook returned response.patch but not response.patchType",
            ),
            (
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                true,
                "webhook returned response.patchType but not response.patch",
            ),
            (
                v1(json!({"uid": "u", "patchType": "", "patch": "W10="})),
                true,
                "webhook returned invalid response.patchType of \"\"",
            ),
            (v1(json!({"uid": "u", "patch": "W10="})), false, "validating webhook may not return response.patch"),
            (
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                false,
                "validating webhook may not return response.patchType",
            ),
        ] {
            assert_eq!(error(review, ReviewVersion::V1, mutates), format!("{invalid}{wanted}"));
        }
        let other = v1(json!({"uid": "u", "patchType": "Merge", "patch": "W3t9XQ=="}));
        assert_eq!(error(other, ReviewVersion::V1, true), "unsupported patch type \"Merge\"");
        let patch = v1(json!({"uid": "u", "patchType": "JSONPatch", "patch": "e30="}));
        assert!(error(patch, ReviewVersion::V1, true).starts_with("received undecodable patch in webhook response: "));
        assert!(error(json!([]), ReviewVersion::V1, true).starts_with("failed to call webhook: "));
    }

    #[test]
    fn the_older_version_is_read_leniently() {
        let review = json!({"response": {"allowed": true, "patch": "W10="}});
        let answer = answer(review.to_string().as_bytes(), "u", ReviewVersion::V1Beta1, true).unwrap();
        assert!(answer.allowed && answer.patch.is_empty());
    }
}
