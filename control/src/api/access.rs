//! What the caller of a request may do: the right is asked before a handler runs, and what is written is judged when it is
//! known.

use axum::http::HeaderMap;
use serde_json::Value;

use super::{
    Call, auth,
    error::ApiError,
    node_restriction::{self, Operation, Refusal, Review},
    target::{Options, Target},
};
use crate::{
    registry::of_kind,
    schema::{Cause, FieldError},
    store::Key,
};

/// The request is meant to be another user's than the one whose credentials it shows, which nobody may ask for here:
/// answered as that user's own it would do what he only wanted to try.
pub(super) fn refuse_impersonation(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.keys().find(|name| name.as_str().starts_with("impersonate-")) {
        Some(name) => Err(ApiError::new(
            403,
            "Forbidden",
            format!(
                "impersonation is not supported by this API server: the request has the header {:?}; send it without (kubectl: without --as, --as-group and --as-uid)",
                name.as_str()
            ),
        )),
        None => Ok(()),
    }
}

impl Call {
    /// Refuses what the caller has no right to.
    pub(super) fn authorize(&self, verb: &str, target: &Target, options: &Options) -> Result<(), ApiError> {
        let asked = auth::asked(verb, target, options);
        auth::authorize(&self.user, verb, &asked, options, &self.api.inner.node_graph)
            .map_err(|why| ApiError::forbidden_access(&self.user, verb, &asked, &why))
    }

    /// Judges a write by who makes it. `old` and `new` are null where there is none.
    pub(super) fn restrict(
        &self,
        operation: Operation,
        target: &Target,
        old: &Value,
        new: &Value,
    ) -> Result<(), ApiError> {
        let (resource, sub) = (target.resource, target.sub.as_deref().unwrap_or(""));
        let given = || new["metadata"]["name"].as_str().unwrap_or("");
        let name = target.name.as_deref().unwrap_or_else(given);
        let Some(node) = self.user.as_node() else {
            if resource.gvk.kind != "Pod" || !matches!(sub, "" | "status") {
                return Ok(());
            }
            return node_restriction::mirror_mark(operation, old, new).map_err(|why| match operation {
                Operation::Update => {
                    let field = "metadata.annotations[kubernetes.io/config.mirror]".to_owned();
                    let error = FieldError { field, cause: Cause::Forbidden, detail: format!("Forbidden: {why}") };
                    ApiError::invalid(resource, name, &[error])
                }
                Operation::Create | Operation::Delete => ApiError::forbidden(resource, name, why),
            });
        };
        let own = (resource.gvk.kind == "Pod" && operation == Operation::Create)
            .then(|| self.api.store().get("nodes", &Key { namespace: String::new(), name: node.to_owned() }))
            .flatten()
            .map(|node| node.value());
        let review = Review {
            node,
            operation,
            kind: resource.gvk.kind,
            sub,
            name,
            old,
            new,
            node_uid: own.as_ref().and_then(|node| node["metadata"]["uid"].as_str()),
        };
        node_restriction::admit(&review).map_err(|refusal| match refusal {
            Refusal::Forbidden(why) => ApiError::forbidden(resource, name, &why),
            Refusal::NoNode => ApiError::not_found(of_kind("Node").unwrap_or(resource), node),
        })
    }
}
