//! What a request is about, who sends it, and how it is answered; the request itself is `api_request`.

pub(crate) mod api_request;
pub(crate) mod attributes;
pub(crate) mod audit;
pub(crate) mod body_guard;
pub(crate) mod error;
pub(crate) mod media_type;
pub(crate) mod negotiation;
pub(crate) mod request_info;
pub(crate) mod target;
pub(crate) mod user;
pub(crate) mod warnings;
