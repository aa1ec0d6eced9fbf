//! The texts of refused requests, as client-go words them (`rest.Result.Error` and `NewGenericServerResponse`). Pure.

use serde_json::Value;

use crate::runtime::error;

/// The text of a refusal that is no object of the API: client-go shows so much of it.
const MAX_UNSTRUCTURED_RESPONSE_TEXT_BYTES: usize = 2048;

/// What a server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    fn media_type(&self) -> &str {
        self.content_type.split(';').next().unwrap_or_default().trim()
    }

    /// Whether it may be an object; without a content type, client-go expects JSON.
    pub(super) fn is_json(&self) -> bool {
        matches!(self.media_type(), "application/json" | "")
    }

    /// Why a request was refused, if it was. `request` is its verb and what it is about.
    pub(super) fn refusal(&self, request: &str) -> Option<String> {
        if (200..=206).contains(&self.code) {
            return None;
        }
        if self.is_json()
            && let Ok(status) = serde_json::from_slice::<Value>(&self.body)
            && status["status"] == "Failure"
        {
            return Some(status["message"].as_str().unwrap_or_default().to_owned());
        }
        let is_text = matches!(self.media_type().split('/').next(), Some("text" | ""));
        let shown = self.body.get(..MAX_UNSTRUCTURED_RESPONSE_TEXT_BYTES).unwrap_or(&self.body);
        let text = if is_text { String::from_utf8_lossy(shown).trim().to_owned() } else { "unknown".to_owned() };
        Some(format!("{} ({request})", generic(self.code, &text)))
    }
}

/// `NewGenericServerResponse`: the words for a code; `text` is what the server has said.
fn generic(code: u16, text: &str) -> String {
    let told = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => text,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if matches!(text, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => text,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => return format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        _ => return format!("the server responded with the status code {code} but did not return more information"),
    };
    told.to_owned()
}

/// The API's own words where it has any, else those for the code.
pub(super) fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.details.is_none() && status.metadata.is_none() => {
            generic(status.code, &status.message)
        }
        _ => error::message(error),
    }
}
