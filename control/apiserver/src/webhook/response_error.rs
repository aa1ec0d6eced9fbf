//! Answers that refuse, in the words of Go's client. Pure.
//!
//! Upstream: `transformResponse` of `k8s.io/client-go/rest` and `NewGenericServerResponse` of `k8s.io/apimachinery/pkg/api/errors`.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use windlass_kit::serve::headers;

use super::CallError;

/// The most bytes of a text that is no Status which are shown.
const MAX_TEXT_BYTES: usize = 2048;

/// The error of an answer with a code that is no success.
pub(super) fn error_of(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> CallError {
    let message = status_message(body).unwrap_or_else(|| generic_message(code, &text_of(headers, body)));
    CallError { message, code: Some(code.as_u16()), is_unserved: false }
}

/// The message of a body that is a Status.
fn status_message(body: &[u8]) -> Option<String> {
    let status: Value = serde_json::from_slice(body).ok()?;
    let refuses = status["kind"] == "Status" && status["status"] != "Success";
    status["message"].as_str().filter(|text| refuses && !text.is_empty()).map(str::to_owned)
}

/// What a body says, if it says that it is a text.
fn text_of(all: &HeaderMap, body: &[u8]) -> String {
    let kind = headers::shown(all, "content-type");
    let is_text = kind.is_empty() || kind.starts_with("text/");
    let text = std::str::from_utf8(&body[..body.len().min(MAX_TEXT_BYTES)]).ok().filter(|_| is_text);
    text.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
}

fn generic_message(code: StatusCode, text: &str) -> String {
    match code.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => text.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if text == "unknown" => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        406 | 415 => text.to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned()
        }
        500.. => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

/// How long to wait before the same call once more, if the server asks for that.
pub(super) fn retry_after(code: StatusCode, all: &HeaderMap) -> Option<Duration> {
    let asks = code == StatusCode::TOO_MANY_REQUESTS || code.is_server_error();
    let seconds = headers::shown(all, "retry-after").parse().ok().filter(|_| asks)?;
    Some(Duration::from_secs(seconds))
}
