//! The Kubernetes API over the store: one set of handlers for all types of the catalog, in five folders.
//!
//! `request` is what a request is about and how it is answered; `filters` what it passes before it is handled (authentication,
//! audit, impersonation, limits, authorization: `chain` has their order); `handlers` answer it; `pipeline` is the way of every
//! write, and `types` is what is served. Filters, pipeline and types import no handler, and no file imports one that imports it.
//! Knows no kind: what one kind does differs in its `Strategy`, its subresources and in admission plugins, which stand in `kinds`
//! and `plugin` and are not imported here.

mod api;
pub(crate) mod filters;
pub(crate) mod generate;
pub(crate) mod handlers;
pub(crate) mod pipeline;
mod post_start_hooks;
pub(crate) mod request;
pub mod types;

#[cfg(test)]
pub(crate) mod tests;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::Request,
    response::{IntoResponse as _, Response},
};

pub use api::{Api, Components, Document};
#[cfg(test)]
pub(crate) use filters::authentication::protocol_token;
pub(crate) use filters::authentication::protocols_without_token;
pub(crate) use filters::authorization::forbidden;
pub use filters::{
    authorization::{Authorizer, Authorizers, Decision, NonResourceRule, PrivilegedGroups, ResourceRule, Rules},
    token_authenticator::{AuditNote, Authenticated, Refused, Remarks, TokenAuthenticator},
};
pub(crate) use handlers::{delete::DeleteOptions, read::Selectors};
pub use handlers::{
    kubelet_client::KubeletClient,
    subresource::SubresourceHandler,
    virtual_resource::{BodyLimits, VirtualResource},
};
pub(crate) use pipeline::stages::{Draft, Mutated, Mutation, Scope, default};
pub use pipeline::{
    admission::{AdmissionAttributes, AdmissionPlugin, Operation, WriteOptions},
    validation::{Cause, Errors, FieldError},
};
pub use request::{
    api_request::ApiRequest,
    attributes::Attributes,
    audit::{Audit, AuditEvent, AuditLevel, AuditRule, AuditSink, AuditStage, ObjectReference},
    error::ApiError,
    request_info::RequestOptions,
    target::Target,
    user::User,
    warnings::Warnings,
};
pub(crate) use request::{
    error::{ApiResult, aggregate},
    user::CREDENTIAL_ID,
};
pub use types::{FirstDeletion, Strategy, Tolerance};

pub use windlass_kit::build_info::VERSION;

impl Api {
    /// A router whose requests carry a [`User`] extension, or that of a client certificate, or a token; without any of
    /// them they are anonymous.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }
}

async fn handle(State(api): State<Api>, request: Request<Body>) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answered = filters::panics::caught(filters::chain::handle(api, request)).await;
    answered.unwrap_or_else(|why| filters::panics::answer(&method, &path, &why).into_response())
}
