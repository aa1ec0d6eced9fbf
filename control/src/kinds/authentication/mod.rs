//! Kinds of the group `authentication.k8s.io`: reviews, which are answered and never stored.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};

use super::shared::reviews;
use crate::{
    apiserver::{
        ApiRequest, ApiResult, BodyLimits, Target, VirtualResource, request_info::RequestOptions, types::Definition,
    },
    service_account_tokens::ISSUER,
};

const GROUP: &str = "authentication.k8s.io";

/// The resources.
pub(super) fn definitions() -> Vec<Definition> {
    vec![
        reviews::definition(GROUP, "selfsubjectreviews", "SelfSubjectReview", Arc::new(SelfSubjectReview)),
        reviews::definition(GROUP, "tokenreviews", "TokenReview", Arc::new(TokenReview)),
    ]
}

/// Who the caller is.
#[derive(Debug)]
struct SelfSubjectReview;

#[async_trait]
impl VirtualResource for SelfSubjectReview {
    fn body_limits(&self) -> Option<BodyLimits> {
        Some(reviews::LIMITS)
    }

    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        _options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let review = reviews::read(body)?;
        let status = json!({"userInfo": request.user.user_info()});
        Ok(request.accept.write(StatusCode::CREATED, &reviews::answer(target, review, status)))
    }
}

/// Whose a token is.
#[derive(Debug)]
struct TokenReview;

#[async_trait]
impl VirtualResource for TokenReview {
    fn body_limits(&self) -> Option<BodyLimits> {
        Some(reviews::LIMITS)
    }

    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        _options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let review = reviews::read(body)?;
        let spec = &review["spec"];
        let wanted: Vec<&str> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let audiences = if wanted.is_empty() { vec![ISSUER] } else { wanted };
        let status = match request.api.authenticate_token(spec["token"].as_str().unwrap_or(""), &audiences) {
            Some(known) => {
                let user = known.user.authenticated().user_info();
                json!({"authenticated": true, "user": user, "audiences": known.audiences})
            }
            None => json!({"authenticated": false, "error": "the token is not one of this server, or is over"}),
        };
        Ok(request.accept.write(StatusCode::CREATED, &reviews::answer(target, review, status)))
    }
}
