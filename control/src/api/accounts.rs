//! Service accounts as callers: tokens that are asked for, and tokens that are shown.

use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Answer, Api, Call,
    error::ApiError,
    identity::UserInfo,
    prepare,
    special::read,
    target::{Options, Target},
};
use crate::{
    registry::of_kind,
    schema::{Cause, FieldError},
    store::Key,
    tokens::ISSUER,
};

/// Upstream's shortest life of a token.
const SHORTEST: i64 = 600;
/// Upstream's longest.
const LONGEST: i64 = 1 << 32;

const GROUP: &str = "system:serviceaccounts";

impl Call {
    /// `serviceaccounts/token`: a token for an account, bound to a pod or secret where the request names one.
    pub(super) async fn token(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let tokens = self.api.inner.tokens.as_ref();
        let tokens = tokens.ok_or_else(|| ApiError::internal("this server has no key for tokens"))?;
        let account = self.fetch(target)?.value();
        let mut request = read(body)?;
        let namespace = target.namespace.clone().unwrap_or_default();
        let name = target.name.clone().unwrap_or_default();
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        if !(SHORTEST..=LONGEST).contains(&seconds) {
            let error = FieldError {
                field: "spec.expirationSeconds".to_owned(),
                cause: Cause::Invalid,
                detail: format!("Invalid value: {seconds}: may not specify a duration less than 10 minutes"),
            };
            return Err(ApiError::invalid(target.resource, &name, &[error]));
        }
        let bound = self.bound(&namespace, &name, &request["spec"]["boundObjectRef"])?;
        let audiences = match request["spec"]["audiences"].as_array() {
            Some(all) if !all.is_empty() => json!(all),
            _ => json!([ISSUER]),
        };
        let now = Timestamp::now().as_second();
        let mut private =
            json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}});
        if let Some((kind, reference)) = bound {
            private[kind] = reference;
        }
        let claims = json!({
            "iss": ISSUER, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
            "iat": now, "nbf": now, "exp": now + seconds, "jti": prepare::new_uid()?, "kubernetes.io": private,
        });
        let token = if options.dry_run {
            String::new()
        } else {
            tokens.sign(&claims).map_err(|e| ApiError::internal(e.to_string()))?
        };
        let end = Timestamp::from_second(now + seconds).map_err(|e| ApiError::internal(e.to_string()))?;
        if !request.is_object() {
            request = json!({});
        }
        request["kind"] = json!("TokenRequest");
        request["apiVersion"] = json!("authentication.k8s.io/v1");
        request["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": prepare::now()});
        request["spec"]["audiences"] = audiences;
        request["spec"]["expirationSeconds"] = json!(seconds);
        request["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok(self.accept.write(StatusCode::CREATED, &request))
    }

    /// The object that a token is bound to: it must be there, and a node asks for the pods that it runs alone.
    fn bound(
        &self,
        namespace: &str,
        account: &str,
        reference: &Value,
    ) -> Result<Option<(&'static str, Value)>, ApiError> {
        let node = self.user.name.strip_prefix("system:node:").filter(|_| self.user.is_in("system:nodes"));
        let name = reference["name"].as_str().unwrap_or("");
        let (kind, word) = match reference["kind"].as_str() {
            Some("Pod") => ("Pod", "pod"),
            Some("Secret") if node.is_none() => ("Secret", "secret"),
            None if node.is_none() => return Ok(None),
            _ if node.is_some() => {
                return Err(ApiError::new(403, "Forbidden", "node requested token not bound to a pod"));
            }
            other => {
                let other = other.unwrap_or("");
                return Err(ApiError::bad_request(format!("cannot bind token to object of kind {other:?}")));
            }
        };
        let resource = of_kind(kind).ok_or_else(ApiError::unknown_path)?;
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let object = self.api.store().get(resource.qualified(), &key);
        let object = object.ok_or_else(|| ApiError::not_found(resource, name))?.value();
        let uid = &object["metadata"]["uid"];
        if reference["uid"].as_str().is_some_and(|wanted| !wanted.is_empty() && uid != wanted) {
            let why = format!("the UID in the bound object reference does not match the UID in record: {uid}");
            return Err(ApiError::conflict(resource, name, &why));
        }
        if let Some(node) = node {
            let own = object["spec"]["nodeName"] == node
                && object["spec"]["serviceAccountName"].as_str().unwrap_or("default") == account;
            if !own {
                return Err(ApiError::new(403, "Forbidden", "node requested token for a pod that it does not run"));
            }
        }
        Ok(Some((word, json!({"name": name, "uid": uid}))))
    }
}

impl Api {
    /// The account that shows a token, as long as the account and what the token is bound to are there.
    pub(super) fn account_of(&self, token: &str, audiences: &[&str]) -> Option<(UserInfo, String)> {
        let claims = self.inner.tokens.as_ref()?.verify(token, Timestamp::now().as_second())?;
        let meant = claims["aud"].as_array().into_iter().flatten().any(|a| audiences.iter().any(|w| a == w));
        let private = &claims["kubernetes.io"];
        let namespace = private["namespace"].as_str()?;
        let lives = |plural: &str, reference: &Value| {
            let name = reference["name"].as_str().unwrap_or("").to_owned();
            let found = self.store().get(plural, &Key { namespace: namespace.to_owned(), name });
            found.is_some_and(|object| object.value()["metadata"]["uid"] == reference["uid"])
        };
        let account = &private["serviceaccount"];
        let good = meant
            && lives("serviceaccounts", account)
            && (private["pod"].is_null() || lives("pods", &private["pod"]))
            && (private["secret"].is_null() || lives("secrets", &private["secret"]));
        let user = UserInfo {
            name: claims["sub"].as_str()?.to_owned(),
            groups: vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")],
        };
        good.then(|| (user, account["uid"].as_str().unwrap_or("").to_owned()))
    }
}
