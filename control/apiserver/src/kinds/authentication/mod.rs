//! Kinds of the group `authentication.k8s.io`: reviews, which are answered and never stored.

use serde_json::{Value, json};

use super::shared::reviews;
use crate::apiserver::{ApiError, ApiRequest, generate::now, types::Definition};

const GROUP: &str = "authentication.k8s.io";

/// The resources.
pub(super) fn definitions() -> Vec<Definition> {
    vec![
        reviews::definition(GROUP, "selfsubjectreviews", "SelfSubjectReview", self_subject_review),
        reviews::definition(GROUP, "tokenreviews", "TokenReview", token_review),
    ]
}

/// Who the caller is.
#[allow(clippy::unnecessary_wraps, reason = "an answer may be a refusal")]
fn self_subject_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    let status = json!({"userInfo": request.user.user_info()});
    Ok(reviews::answer_of(&review, json!({"creationTimestamp": now()}), status))
}

/// Whose a token is.
fn token_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    let spec = &review["spec"];
    let token = spec["token"].as_str().unwrap_or("");
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<&str> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let status = match request.api.authenticate_token(token, &audiences) {
        Ok(known) => {
            if let Some((key, value)) = known.remarks.audit {
                request.audit.annotate(key, value);
            }
            let user = known.user.authenticated().user_info();
            json!({"authenticated": true, "user": user, "audiences": known.audiences})
        }
        Err(refused) => {
            if let Some((key, value)) = refused.audit {
                request.audit.annotate(key, value);
            }
            json!({"user": {}, "error": refused.why})
        }
    };
    Ok(reviews::with_status(review, status))
}
