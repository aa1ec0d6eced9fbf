//! Texts of events about an owner's pods, as in upstream's pkg/controller/controller_utils.go. Pure.

pub(crate) const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
pub(crate) const FAILED_CREATE: &str = "FailedCreate";
pub(crate) const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
pub(crate) const FAILED_DELETE: &str = "FailedDelete";

pub(crate) fn created(pod: &str) -> String {
    format!("Created pod: {pod}")
}

pub(crate) fn create_failed(error: &str) -> String {
    format!("Error creating: {error}")
}

pub(crate) fn deleted(pod: &str) -> String {
    format!("Deleted pod: {pod}")
}

pub(crate) fn delete_failed(error: &str) -> String {
    format!("Error deleting: {error}")
}
