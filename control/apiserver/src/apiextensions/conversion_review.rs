//! ConversionReview: what a conversion webhook is sent, and what is taken of its answer. Pure.
//!
//! Upstream: `apiextensions-apiserver/pkg/apiserver/conversion/webhook_converter.go`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass_apimachinery::go_type;

use crate::{
    apiserver::{
        aggregate,
        pipeline::validation::{errors::Errors, names},
    },
    webhook::ReviewVersion,
};

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "ConversionReview";

/// Why there are no converted objects: how upstream counts it, and the words behind "conversion webhook for <kind>".
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) failure: &'static str,
    pub(super) message: String,
}

impl Fault {
    const OF_CALL: &'static str = "conversion_webhook_call_failure";

    /// The call itself failed.
    pub(super) fn calling(why: impl std::fmt::Display) -> Self {
        Self { failure: Self::OF_CALL, message: format!("failed: {why}") }
    }

    /// Whether the webhook was not reached, so that nothing is known of the objects.
    pub(super) fn is_of_call(&self) -> bool {
        self.failure == Self::OF_CALL
    }

    fn malformed(why: impl std::fmt::Display) -> Self {
        Self { failure: "conversion_webhook_malformed_response_failure", message: format!("failed: {why}") }
    }

    fn partial(got: usize, expected: usize) -> Self {
        let message = format!("returned {got} objects, expected {expected}");
        Self { failure: "conversion_webhook_partial_response_failure", message }
    }

    fn invalid(message: String) -> Self {
        Self { failure: "conversion_webhook_invalid_converted_object_failure", message }
    }
}

/// The review that asks for `objects` in the version `to`. Upstream's has an empty response, which some webhooks fill in.
pub(super) fn request(version: ReviewVersion, uid: &str, to: &str, objects: &[Value]) -> Value {
    json!({
        "kind": KIND,
        "apiVersion": version.api_version(GROUP),
        "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
        "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
    })
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
    converted_objects: Option<Vec<Value>>,
    #[serde(default)]
    result: Result_,
}

/// The part of a `Status` that is read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename = "Result")]
struct Result_ {
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: String,
}

/// The converted objects of an answer, with the metadata of `originals` but for labels and annotations.
///
/// # Errors
/// When it is no answer to this review, says that the conversion has failed, or has other objects than those asked for.
pub(super) fn converted(
    version: ReviewVersion,
    uid: &str,
    body: &[u8],
    originals: &[Value],
    to: &str,
) -> Result<Vec<Value>, Fault> {
    let review: Review = serde_json::from_slice(body).map_err(Fault::calling)?;
    let objects = objects_of(version, uid, review)?;
    if objects.len() != originals.len() {
        return Err(Fault::partial(objects.len(), originals.len()));
    }
    let alone = originals.len() == 1;
    let checked = objects.into_iter().zip(originals).enumerate();
    checked.map(|(at, (object, original))| check(object, original, to, at, alone)).collect()
}

fn objects_of(version: ReviewVersion, uid: &str, review: Review) -> Result<Vec<Value>, Fault> {
    version.check_type((GROUP, KIND), &review.api_version, &review.kind).map_err(Fault::malformed)?;
    let Some(response) = review.response else { return Err(Fault::malformed("no response provided")) };
    version.check_uid(uid, &response.uid).map_err(Fault::malformed)?;
    let Result_ { status, message } = response.result;
    match (status.as_str(), message.is_empty()) {
        ("Success", _) => Ok(response.converted_objects.unwrap_or_default()),
        (_, false) => Err(Fault::malformed(message)),
        (_, true) => Err(Fault::malformed(format!("response.result.status was '{status}', not 'Success'"))),
    }
}

/// One converted object, with the metadata of the original.
fn check(mut object: Value, original: &Value, to: &str, at: usize, alone: bool) -> Result<Value, Fault> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or("").to_owned();
    let invalid = |why: String| Fault::invalid(format!("returned invalid {why}"));
    let place = || if alone { "object at index 0".to_owned() } else { format!("converted object at index {at}") };
    let kind = text(&object, "kind");
    if kind.is_empty() {
        return Err(invalid(format!("{}: Object 'Kind' is missing in '{object}'", place())));
    }
    let (expected, got) = (text(original, "kind"), kind);
    let version = text(&object, "apiVersion");
    if version != to {
        return Err(invalid(format!("{}: invalid groupVersion (expected {to}, received {version})", place())));
    }
    if expected != got {
        return Err(invalid(format!("{}: invalid kind (expected {expected}, received {got})", place())));
    }
    for (field, word) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (is, now) = (text(&original["metadata"], field), text(&object["metadata"], field));
        if is != now {
            let place = if alone { "object".to_owned() } else { place() };
            return Err(invalid(format!("{place}: must have the same {word}: {is} != {now}")));
        }
    }
    restore_metadata(&mut object, original).map_err(|why| {
        let place = if alone { "metadata".to_owned() } else { format!("metadata in object at index {at}") };
        invalid(format!("{place}: {why}"))
    })?;
    Ok(object)
}

/// Upstream's `restoreObjectMeta`.
fn restore_metadata(object: &mut Value, original: &Value) -> Result<(), String> {
    let given = match object.get_mut("metadata") {
        None => return Err("missing metadata in converted object".to_owned()),
        Some(Value::Object(given)) => std::mem::take(given),
        Some(other) => return Err(format!("invalid metadata of type {} in converted object", go_type(other))),
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => drop(metadata.remove(field)),
            Some(Value::Object(map)) => {
                check_map(field, map, metadata.get(field))?;
                metadata.insert(field.to_owned(), Value::Object(map.clone()));
            }
            Some(other) => {
                return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(other)));
            }
        }
    }
    object["metadata"] = Value::Object(metadata);
    Ok(())
}

/// Labels or annotations that a webhook has changed are valid.
fn check_map(field: &str, map: &Map<String, Value>, before: Option<&Value>) -> Result<(), String> {
    if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
        let kind = go_type(value);
        return Err(format!("metadata.{field}[{key}] must be a string, but is {kind} in converted object"));
    }
    if before.and_then(Value::as_object).is_some_and(|before| before == map) {
        return Ok(());
    }
    let (value, mut errors) = (Value::Object(map.clone()), Errors::default());
    match field {
        "labels" => names::labels(&value, "metadata.labels", &mut errors),
        _ => names::annotations(&value, "metadata.annotation", &mut errors),
    }
    aggregate(errors.0.iter().map(ToString::to_string)).map_or(Ok(()), Err)
}
