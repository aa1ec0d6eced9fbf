//! Service accounts as callers: tokens that are asked for, and tokens that are shown.

use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Answer, Api, Call,
    error::ApiError,
    identity::UserInfo,
    node_restriction, prepare,
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
        let wrong = match seconds {
            ..SHORTEST => Some("may not specify a duration less than 10 minutes"),
            SHORTEST..=LONGEST => None,
            _ => Some("may not specify a duration larger than 2^32 seconds"),
        };
        if let Some(why) = wrong {
            let error = FieldError {
                field: "spec.expirationSeconds".to_owned(),
                cause: Cause::Invalid,
                detail: format!("Invalid value: {seconds}: {why}"),
            };
            return Err(ApiError::invalid(target.resource, &name, &[error]));
        }
        let bound = self.bound(target, &request["spec"])?;
        // As upstream: whoever asks for more is given what there is, and reads in the answer how long that is.
        let seconds = self.api.inner.max_token_seconds.map_or(seconds, |most| seconds.min(most));
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

    /// The object that a token is bound to: it must be there. A node asks for the pods that it runs alone.
    fn bound(&self, target: &Target, spec: &Value) -> Result<Option<(&'static str, Value)>, ApiError> {
        let (namespace, account) = (target.namespace.as_deref().unwrap_or(""), target.name.as_deref().unwrap_or(""));
        let reference = &spec["boundObjectRef"];
        let node = self.user.as_node();
        if node.is_some() && !node_restriction::names_a_pod(reference) {
            let why = "node requested token not bound to a pod";
            return Err(ApiError::forbidden(target.resource, account, why));
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
        let object = self.api.store().get(resource.qualified(), &key);
        let object = object.ok_or_else(|| ApiError::not_found(resource, name))?.value();
        if let Some(node) = node {
            node_restriction::admit_token(node, spec, &object)
                .map_err(|why| ApiError::forbidden(target.resource, account, &why))?;
        }
        if kind == "Pod" && object["spec"]["serviceAccountName"].as_str().unwrap_or("") != account {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            )));
        }
        let uid = &object["metadata"]["uid"];
        if let Some(wanted) = reference["uid"].as_str().filter(|wanted| !wanted.is_empty() && uid != wanted) {
            return Err(ApiError::conflict(resource, name, &node_restriction::other_uid(wanted)));
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
