//! Questions about identity and rights: asked by kubectl and by the nodes' own API, never stored.

use axum::{
    body::Bytes,
    http::{Method, StatusCode},
};
use serde_json::{Value, json};

use super::{
    Answer, Call,
    auth::{Attributes, decide},
    error::ApiError,
    identity::UserInfo,
};
use crate::schema::{self, ContentType};

pub(super) fn answer(call: &Call, group: &str, kind: &str, body: &Bytes) -> Answer {
    if call.method != Method::POST {
        return Err(ApiError::new(405, "MethodNotAllowed", "reviews can only be created"));
    }
    let review = schema::decode(body, ContentType::Json)
        .map_err(|why| ApiError::bad_request(format!("the review cannot be read: {why}")))?
        .value;
    let user = &call.user;
    let asks_about_others = matches!(kind, "subjectaccessreviews" | "tokenreviews");
    if asks_about_others {
        let what = Attributes { group, resource: kind, sub: "", namespace: "", name: "" };
        decide(user, "create", &what).map_err(|_| {
            ApiError::new(403, "Forbidden", format!("{kind}.{group} is forbidden: User {:?} cannot create resource {kind:?} in API group {group:?} at the cluster scope", user.name))
        })?;
    }
    let status = match (group, kind) {
        ("authorization.k8s.io", "selfsubjectaccessreviews") => access(user, &review["spec"]),
        ("authorization.k8s.io", "subjectaccessreviews") => access(&subject(&review["spec"]), &review["spec"]),
        ("authentication.k8s.io", "selfsubjectreviews") => json!({"userInfo": user_info(user)}),
        ("authentication.k8s.io", "tokenreviews") => token(call, &review["spec"]),
        _ => return Err(ApiError::unknown_path()),
    };
    let mut out = review;
    if !out.is_object() {
        out = json!({});
    }
    out["status"] = status;
    Ok(call.accept.write(StatusCode::CREATED, &out))
}

fn token(call: &Call, spec: &Value) -> Value {
    let wanted: Vec<&str> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let audiences = if wanted.is_empty() { vec![crate::tokens::ISSUER] } else { wanted };
    match call.api.account_of(spec["token"].as_str().unwrap_or(""), &audiences) {
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

fn access(user: &UserInfo, spec: &Value) -> Value {
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    let wanted = &spec["resourceAttributes"];
    let (group, resource, sub, namespace, name, verb) = if wanted.is_object() {
        (
            text(&wanted["group"]),
            text(&wanted["resource"]),
            text(&wanted["subresource"]),
            text(&wanted["namespace"]),
            text(&wanted["name"]),
            text(&wanted["verb"]),
        )
    } else {
        (
            String::new(),
            text(&spec["nonResourceAttributes"]["path"]),
            String::new(),
            String::new(),
            String::new(),
            text(&spec["nonResourceAttributes"]["verb"]),
        )
    };
    let what = Attributes { group: &group, resource: &resource, sub: &sub, namespace: &namespace, name: &name };
    match decide(user, &verb, &what) {
        Ok(()) => json!({"allowed": true}),
        Err(why) => json!({"allowed": false, "reason": why}),
    }
}

fn user_info(user: &UserInfo) -> Value {
    let mut groups = user.groups.clone();
    groups.push("system:authenticated".to_owned());
    json!({"username": user.name, "groups": groups})
}
