//! Subresources, one file for each. Those that change an object hand it to `write`; `connect` proxies to the pod's
//! node.

mod binding;
mod connect;
mod container;
pub(super) mod ephemeral_containers;
mod eviction;
pub(super) mod finalize;
mod log;
pub(super) mod resize;
mod scale;
pub(super) mod status;
mod token_request;

use axum::body::Bytes;
use serde_json::Value;

use super::{
    ApiRequest, ApiResult,
    request_info::{RequestInfo, RequestOptions},
};
pub(super) use connect::CONNECT_SUBRESOURCES;

impl ApiRequest {
    pub(super) async fn handle_subresource(
        &self,
        verb: &str,
        info: &RequestInfo,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        match (info.subresource.as_deref(), verb) {
            (Some("scale"), "get") => self.get_scale(info),
            (Some("scale"), "update" | "patch") => self.scale(info, options, body).await,
            (Some("binding"), "create") => self.bind(info, options, body).await,
            (Some("eviction"), "create") => self.evict(info, options, body).await,
            (Some("finalize"), "update") => self.update(info, options, body).await,
            (Some("token"), "create") => self.token(info, options, body).await,
            (Some("log"), "get") => self.log(info, options).await,
            (Some(subresource), "get" | "create") if CONNECT_SUBRESOURCES.contains(&subresource) => {
                self.connect(info, options).await
            }
            _ => Err(info.method_not_allowed(&self.method)),
        }
    }

    /// Whether the caller also needs the right to create: since Kubernetes 1.35 a `GET` that upgrades a connection
    /// needs more than the right to get.
    pub(super) fn requires_create(info: &RequestInfo, verb: &str) -> bool {
        verb == "get"
            && info.subresource.as_deref().is_some_and(|subresource| CONNECT_SUBRESOURCES.contains(&subresource))
    }
}

/// Sets a field of `object` to its value in `old`.
pub(super) fn keep_field(object: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => object[field] = value.clone(),
        None => drop(object.as_object_mut().map(|fields| fields.remove(field))),
    }
}
