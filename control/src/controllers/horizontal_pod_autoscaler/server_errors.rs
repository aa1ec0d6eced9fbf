//! The texts of refused requests, as client-go words them (`NewGenericServerResponse`). Pure.

use crate::controllers::runtime::error;

const NOT_SERVED: &str = "the server could not find the requested resource";

/// The API's own words where it has any; else those for the code, with the verb and the resource.
pub(super) fn text(error: &kube::Error, request: Option<(&str, &str)>) -> String {
    let kube::Error::Api(status) = error else { return error.to_string() };
    let told = match status.code {
        404 if status.message == NOT_SERVED => NOT_SERVED,
        // No object of the API: a proxy answers in its place.
        _ if status.details.is_some() || status.metadata.is_some() => return error::message(error),
        404 => NOT_SERVED,
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        _ => return error::message(error),
    };
    match request {
        Some((verb, resource)) => format!("{told} ({verb} {resource})"),
        None => told.to_owned(),
    }
}
