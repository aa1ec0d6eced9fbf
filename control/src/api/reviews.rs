//! Token and access reviews, for kubectl and the nodes' own API. They are never stored.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use serde_json::{Value, json};
use windlass_apimachinery::selectors::FieldSelector;

use super::{
    ApiRequest, ApiResult, MAX_REVIEW_BODY_BYTES, REVIEW_BODY_TIMEOUT,
    authentication::UserInfo,
    authorization::{Attributes, decide},
    error::ApiError,
};
use crate::{
    registry::of_kind,
    schema::{self, ContentType},
    selectable_fields,
};

/// The reviews: group, resource, and whether it is about other users, which needs a right.
const REVIEWS: [(&str, &str, bool); 4] = [
    ("authorization.k8s.io", "selfsubjectaccessreviews", false),
    ("authorization.k8s.io", "subjectaccessreviews", true),
    ("authentication.k8s.io", "selfsubjectreviews", false),
    ("authentication.k8s.io", "tokenreviews", true),
];

/// Rights are checked before the body is read: every authenticated caller may come here.
pub(super) async fn answer(request: &ApiRequest, group: &str, kind: &str, body: Body) -> ApiResult {
    if request.method != Method::POST {
        return Err(ApiError::new(405, "MethodNotAllowed", "reviews can only be created"));
    }
    let known = REVIEWS.iter().find(|(g, k, _)| (*g, *k) == (group, kind));
    let (_, _, about_others) = *known.ok_or_else(ApiError::unknown_path)?;
    let user = &request.user;
    if about_others {
        let what = Attributes { verb: "create", group, resource: kind, ..Attributes::default() };
        decide(user, &what, &request.api.inner.node_graph).map_err(|_| {
            ApiError::new(403, "Forbidden", format!("{kind}.{group} is forbidden: User {:?} cannot create resource {kind:?} in API group {group:?} at the cluster scope", user.name))
        })?;
    }
    // Components of this process, nodes and administrators are not limited: other requests depend on their reviews.
    let is_limited = !request.is_system() && !user.is_in(crate::pki::MASTERS_GROUP);
    let _permit = if is_limited {
        Some(request.api.inner.reviews.try_acquire().map_err(|_| ApiError::too_many_requests())?)
    } else {
        None
    };
    let body = tokio::time::timeout(REVIEW_BODY_TIMEOUT, request.body(body, MAX_REVIEW_BODY_BYTES)).await;
    let body = body.map_err(|_| ApiError::new(408, "Timeout", "the review did not come in time"))??;
    let review = schema::decode(&body, ContentType::Json)
        .map_err(|why| ApiError::bad_request(format!("the review cannot be read: {why}")))?
        .value;
    let status = match kind {
        "selfsubjectaccessreviews" => access(request, user, &review["spec"]),
        "subjectaccessreviews" => access(request, &subject(&review["spec"]), &review["spec"]),
        "selfsubjectreviews" => json!({"userInfo": user_info(user)}),
        _ => token(request, &review["spec"]),
    };
    let mut out = review;
    if !out.is_object() {
        out = json!({});
    }
    let (group, kind) = match kind {
        "selfsubjectaccessreviews" => ("authorization.k8s.io", "SelfSubjectAccessReview"),
        "subjectaccessreviews" => ("authorization.k8s.io", "SubjectAccessReview"),
        "selfsubjectreviews" => ("authentication.k8s.io", "SelfSubjectReview"),
        _ => ("authentication.k8s.io", "TokenReview"),
    };
    out["apiVersion"] = json!(format!("{group}/v1"));
    out["kind"] = json!(kind);
    out["status"] = status;
    Ok(request.accept.write(StatusCode::CREATED, &out))
}

fn token(request: &ApiRequest, spec: &Value) -> Value {
    let wanted: Vec<&str> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let audiences = if wanted.is_empty() { vec![crate::service_account_tokens::ISSUER] } else { wanted };
    match request.api.authenticate_token(spec["token"].as_str().unwrap_or(""), &audiences) {
        Some((user, uid)) => {
            let mut info = user_info(&user);
            info["uid"] = json!(uid);
            json!({"authenticated": true, "user": info, "audiences": audiences})
        }
        None => json!({"authenticated": false, "error": "the token is not one of this server, or is over"}),
    }
}

fn subject(spec: &Value) -> UserInfo {
    let groups =
        spec["groups"].as_array().into_iter().flatten().filter_map(|g| g.as_str().map(str::to_owned)).collect();
    UserInfo { name: spec["user"].as_str().unwrap_or("").to_owned(), groups }
}

fn access(request: &ApiRequest, user: &UserInfo, spec: &Value) -> Value {
    let wanted = &spec["resourceAttributes"];
    let text = |field: &str| wanted[field].as_str().unwrap_or("");
    let selected = selected_node(&wanted["fieldSelector"]);
    let what = Attributes {
        verb: text("verb"),
        group: text("group"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        selected_node: selected.as_deref(),
    };
    // Non-resource paths are open to every authenticated user and are not decided here.
    let decided = if wanted.is_object() || user.is_in(crate::pki::MASTERS_GROUP) {
        decide(user, &what, &request.api.inner.node_graph)
    } else {
        Err(String::new())
    };
    match decided {
        Ok(()) => json!({"allowed": true}),
        Err(why) => json!({"allowed": false, "reason": why}),
    }
}

/// The value that a field selector requires of `spec.nodeName`.
fn selected_node(selector: &Value) -> Option<String> {
    let pods = of_kind("Pod")?;
    if let Some(raw) = selector["rawSelector"].as_str() {
        return FieldSelector::parse(raw, selectable_fields::of_kind(&pods.gvk))
            .ok()?
            .exact("spec.nodeName")
            .map(str::to_owned);
    }
    let requirements = selector["requirements"].as_array()?;
    let of_node = requirements.iter().find(|r| r["key"] == "spec.nodeName" && r["operator"] == "In")?;
    match of_node["values"].as_array().map(Vec::as_slice) {
        Some([one]) => one.as_str().map(str::to_owned),
        _ => None,
    }
}

fn user_info(user: &UserInfo) -> Value {
    let mut groups = user.groups.clone();
    groups.push("system:authenticated".to_owned());
    json!({"username": user.name, "groups": groups})
}
