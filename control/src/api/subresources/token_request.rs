//! `serviceaccounts/token`: a token for an account, bound to a pod or secret where the request names one.

use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    api::{
        ApiRequest, ApiResult,
        admission::node_restriction,
        decode::read_json,
        error::ApiError,
        generate::{new_uid, now},
        request_info::{RequestInfo, RequestOptions},
    },
    registry::of_kind,
    schema::{Cause, FieldError},
    service_account_tokens::ISSUER,
    store::Key,
};

/// Upstream's minimum.
const MIN_EXPIRATION_SECONDS: i64 = 600;

/// Upstream's maximum.
const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;

impl ApiRequest {
    /// `serviceaccounts/token`: a token for an account, bound to a pod or secret where the request names one.
    pub(super) async fn token(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let tokens = self.api.inner.tokens.as_ref();
        let tokens = tokens.ok_or_else(|| ApiError::internal("this server has no key for tokens"))?;
        let account = self.fetch(info)?.value();
        let mut request = read_json(body)?;
        let namespace = info.namespace.clone().unwrap_or_default();
        let name = info.name.clone().unwrap_or_default();
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
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
            return Err(ApiError::invalid(info.resource, &name, &[error]));
        }
        let bound = self.bound_object(info, &request["spec"])?;
        // As upstream: a longer lifetime is cut to the maximum, which the response states.
        let seconds = self.api.inner.max_token_seconds.map_or(seconds, |max| seconds.min(max));
        let audiences = match request["spec"]["audiences"].as_array() {
            Some(all) if !all.is_empty() => json!(all),
            _ => json!([ISSUER]),
        };
        let issued = Timestamp::now().as_second();
        let mut private =
            json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}});
        if let Some((kind, reference)) = bound {
            private[kind] = reference;
        }
        let claims = json!({
            "iss": ISSUER, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
            "iat": issued, "nbf": issued, "exp": issued + seconds, "jti": new_uid()?, "kubernetes.io": private,
        });
        let token = if options.dry_run {
            String::new()
        } else {
            tokens.sign(&claims).map_err(|e| ApiError::internal(e.to_string()))?
        };
        let end = Timestamp::from_second(issued + seconds).map_err(|e| ApiError::internal(e.to_string()))?;
        if !request.is_object() {
            request = json!({});
        }
        request["kind"] = json!("TokenRequest");
        request["apiVersion"] = json!("authentication.k8s.io/v1");
        request["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": now()});
        request["spec"]["audiences"] = audiences;
        request["spec"]["expirationSeconds"] = json!(seconds);
        request["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok(self.accept.write(StatusCode::CREATED, &request))
    }

    /// The object that a token is bound to, which must exist. A node may only request tokens bound to pods that it
    /// runs.
    fn bound_object(&self, info: &RequestInfo, spec: &Value) -> Result<Option<(&'static str, Value)>, ApiError> {
        let (namespace, account) = (info.namespace.as_deref().unwrap_or(""), info.name.as_deref().unwrap_or(""));
        let reference = &spec["boundObjectRef"];
        let node = self.user.as_node();
        if node.is_some() && !node_restriction::is_pod_reference(reference) {
            let why = "node requested token not bound to a pod";
            return Err(ApiError::forbidden(info.resource, account, why));
        }
        let name = reference["name"].as_str().unwrap_or("");
        let (kind, word) = match reference["kind"].as_str() {
            Some("Pod") => ("Pod", "pod"),
            Some("Secret") => ("Secret", "secret"),
            None => return Ok(None),
            Some(other) => {
                return Err(ApiError::bad_request(format!("cannot bind token to object of kind {other:?}")));
            }
        };
        let resource = of_kind(kind).ok_or_else(ApiError::unknown_path)?;
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let object = self.api.store().get(self.api.resource_id(resource), &key);
        let object = object.ok_or_else(|| ApiError::not_found(resource, name))?.value();
        if let Some(node) = node {
            node_restriction::admit_token(node, spec, &object)
                .map_err(|why| ApiError::forbidden(info.resource, account, &why))?;
        }
        if kind == "Pod" && object["spec"]["serviceAccountName"].as_str().unwrap_or("") != account {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            )));
        }
        let uid = &object["metadata"]["uid"];
        if let Some(wanted) = reference["uid"].as_str().filter(|wanted| !wanted.is_empty() && uid != wanted) {
            return Err(ApiError::conflict(resource, name, &node_restriction::uid_mismatch(wanted)));
        }
        Ok(Some((word, json!({"name": name, "uid": uid}))))
    }
}
