//! `serviceaccounts/token`: a token for an account, bound to a pod, secret or node where the request names one.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_identity::service_account_tokens::TokenIssuer;

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, Target,
        generate::{new_uid, now},
        handlers::subresource::SubresourceHandler,
        pipeline::validation::{Cause, FieldError, errors::Errors},
        request::request_info::RequestOptions,
        types::Gvk,
    },
    kinds::shared::posted,
    store::Key,
};

/// Upstream's minimum.
const MIN_EXPIRATION_SECONDS: i64 = 600;

/// Upstream's maximum.
const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;

pub(super) const TOKEN_REQUEST: Gvk = Gvk::of("authentication.k8s.io", "v1", "TokenRequest");
const NODES: &str = "nodes";

/// Gives tokens.
#[derive(Debug)]
pub(super) struct TokenRequest {
    pub(super) tokens: Option<Arc<TokenIssuer>>,
    /// Maximum lifetime, in seconds.
    pub(super) max_token_seconds: Option<i64>,
}

#[async_trait]
impl SubresourceHandler for TokenRequest {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let wanted = posted::read(request, target, &TOKEN_REQUEST, options, body)?;
        let tokens = self.tokens.as_ref();
        let tokens = tokens.ok_or_else(|| ApiError::internal("this server has no key for tokens"))?;
        let account = request.read(target)?;
        let namespace = target.namespace.clone().unwrap_or_default();
        let name = target.name.clone().unwrap_or_default();
        is_of_account(&wanted["metadata"], target, &account)?;
        let seconds = wanted["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        let wrong = match seconds {
            ..MIN_EXPIRATION_SECONDS => Some("may not specify a duration less than 10 minutes"),
            MIN_EXPIRATION_SECONDS..=MAX_EXPIRATION_SECONDS => None,
            _ => Some("may not specify a duration larger than 2^32 seconds"),
        };
        if let Some(why) = wrong {
            let error = FieldError {
                field: "spec.expirationSeconds".to_owned(),
                cause: Cause::Invalid,
                detail: format!("Invalid value: {seconds}: {why}"),
            };
            return Err(ApiError::invalid(&target.version, &name, &[error]));
        }
        let mut wanted = request.admit_posted(target, options, wanted, Some(&account)).await?;
        let bound = bound_object(request, target, &wanted["spec"])?;
        // As upstream: a longer lifetime is cut to the maximum, which the response states.
        let asked = seconds;
        let seconds = self.max_token_seconds.map_or(asked, |max| asked.min(max));
        if seconds < asked {
            let told = format!("requested expiration of {asked} seconds shortened to {seconds} seconds");
            request.warnings.extend([told]);
        }
        let audiences = match wanted["spec"]["audiences"].as_array() {
            Some(all) if !all.is_empty() => json!(all),
            _ => json!(tokens.audiences()),
        };
        let issued = Timestamp::now().as_second();
        let mut private =
            json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}});
        for (kind, reference) in bound {
            private[kind] = reference;
        }
        let claims = json!({
            "iss": tokens.issuer(), "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
            "iat": issued, "nbf": issued, "exp": issued + seconds, "jti": new_uid()?, "kubernetes.io": private,
        });
        let token = if options.dry_run {
            String::new()
        } else {
            tokens.sign(&claims).map_err(|e| ApiError::internal(e.to_string()))?
        };
        let end = Timestamp::from_second(issued + seconds).map_err(|e| ApiError::internal(e.to_string()))?;
        wanted["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": now()});
        wanted["spec"]["audiences"] = audiences;
        wanted["spec"]["expirationSeconds"] = json!(seconds);
        wanted["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok(request.accept.write(StatusCode::CREATED, &wanted))
    }
}

/// The object that a token is bound to, which must exist, as claims; for a pod with its node.
fn bound_object(request: &ApiRequest, target: &Target, spec: &Value) -> Result<Vec<(&'static str, Value)>, ApiError> {
    let (namespace, account) = (target.namespace.as_deref().unwrap_or(""), target.name());
    let reference = &spec["boundObjectRef"];
    let name = reference["name"].as_str().unwrap_or("");
    let (plural, word, namespace) = match reference["kind"].as_str() {
        Some("Pod") => ("pods", "pod", namespace),
        Some("Secret") => ("secrets", "secret", namespace),
        Some("Node") => (NODES, "node", ""),
        None => return Ok(Vec::new()),
        Some(other) => {
            return Err(ApiError::bad_request(format!("cannot bind token to object of kind {other:?}")));
        }
    };
    let find = |plural: &str, namespace: &str, name: &str| {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        request.store().get(request.store().resource(plural), &key).map(|object| object.value())
    };
    let object = find(plural, namespace, name).ok_or_else(|| ApiError::not_found_in("", plural, name))?;
    if word == "pod" && object["spec"]["serviceAccountName"].as_str().unwrap_or("") != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    let uid = &object["metadata"]["uid"];
    if let Some(wanted) = reference["uid"].as_str().filter(|wanted| !wanted.is_empty() && uid != wanted) {
        return Err(ApiError::conflict_in("", plural, name, &uid_mismatch(wanted)));
    }
    let mut claims = vec![(word, json!({"name": name, "uid": uid}))];
    let node_name = object["spec"]["nodeName"].as_str().filter(|node| word == "pod" && !node.is_empty());
    if let Some(node_name) = node_name {
        // A deleted node is named all the same: it is where the pod is.
        let node = find(NODES, "", node_name);
        claims.push((
            "node",
            match node {
                Some(node) => json!({"name": node_name, "uid": node["metadata"]["uid"]}),
                None => json!({"name": node_name}),
            },
        ));
    }
    Ok(claims)
}

/// Refuses a request that names another account than its path. Upstream: `TokenREST.Create`.
fn is_of_account(metadata: &Value, target: &Target, account: &Value) -> Result<(), ApiError> {
    let name = target.name();
    for (field, of_path) in [("name", name), ("namespace", target.namespace.as_deref().unwrap_or(""))] {
        let told = metadata[field].as_str().unwrap_or("");
        if !told.is_empty() && told != of_path {
            let mut errors = Errors::default();
            let why = format!("must match the service account {field} if specified");
            errors.invalid_text(format!("metadata.{field}"), told, &why);
            return Err(ApiError::invalid(&target.version, name, &errors.0));
        }
    }
    let (told, uid) = (metadata["uid"].as_str().unwrap_or(""), account["metadata"]["uid"].as_str().unwrap_or(""));
    if !told.is_empty() && told != uid {
        let why =
            format!("the UID in the token request ({told}) does not match the UID of the service account ({uid})");
        return Err(ApiError::conflict_in(&TOKEN_REQUEST.group, &TOKEN_REQUEST.kind, name, &why));
    }
    Ok(())
}

/// The error of a bound object that was recreated.
pub(crate) fn uid_mismatch(wanted: &str) -> String {
    format!(
        "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
    )
}
