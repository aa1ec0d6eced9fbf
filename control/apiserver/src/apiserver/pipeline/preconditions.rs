//! Preconditions of a change: uid and resource version must be those of the stored object. Pure.

use serde_json::Value;

use super::validation::{Cause, FieldError};
use crate::apiserver::request::{error::ApiError, target::Target};

/// Checks uid and resource version of a change, where it has them.
pub(in crate::apiserver) fn check_preconditions(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    check_uid(target, change, old)?;
    check_version(target, change, old)
}

/// A patch may not change the uid.
pub(in crate::apiserver) fn check_identity(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let uid = &change["metadata"]["uid"];
    if uid.as_str().is_none_or(str::is_empty) || *uid == old["metadata"]["uid"] {
        return Ok(());
    }
    let detail = format!("Invalid value: {uid}: field is immutable");
    let error = FieldError { field: "metadata.uid".to_owned(), cause: Cause::Invalid, detail };
    Err(ApiError::invalid(&target.version, target.name(), &[error]))
}

/// The resource version that a change is of; `None` where it is of any.
fn requested_version(change: &Value) -> Option<&str> {
    change["metadata"]["resourceVersion"].as_str().filter(|version| !matches!(*version, "" | "0"))
}

/// Refuses a change of any resource version, where the resource requires one.
pub(in crate::apiserver) fn check_unconditional(target: &Target, change: &Value) -> Result<(), ApiError> {
    if target.version.allow_unconditional_update || requested_version(change).is_some() {
        return Ok(());
    }
    Err(ApiError::unconditional_update(&target.version, target.name()))
}

pub(in crate::apiserver) fn check_version(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let Some(requested) = requested_version(change).filter(|version| old["metadata"]["resourceVersion"] != *version)
    else {
        return Ok(());
    };
    if requested.parse::<u64>().is_err() {
        return Err(ApiError::bad_request(format!("Invalid value: {requested:?}: resourceVersion is not a number")));
    }
    Err(ApiError::modified(&target.version, target.name()))
}

/// Checks the uid of a change, where it has one.
pub(in crate::apiserver) fn check_uid(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or("").to_owned();
    let (wanted, is) = (uid(change), uid(old));
    if wanted.is_empty() || wanted == is {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
    Err(ApiError::conflict(&target.version, target.name(), &why))
}
