//! Kinds of the group `authorization.k8s.io`: access reviews, which are answered by the authorizers that decide on
//! requests.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};

use super::shared::reviews;
use crate::apiserver::{
    ApiRequest, ApiResult, Attributes, BodyLimits, Target, User, VirtualResource, request_info::RequestOptions,
    types::Definition,
};

const GROUP: &str = "authorization.k8s.io";

/// The resources.
pub(super) fn definitions() -> Vec<Definition> {
    let review =
        |plural, kind, of_caller| reviews::definition(GROUP, plural, kind, Arc::new(AccessReview { of_caller }));
    vec![
        review("selfsubjectaccessreviews", "SelfSubjectAccessReview", true),
        review("subjectaccessreviews", "SubjectAccessReview", false),
    ]
}

/// What somebody may do.
#[derive(Debug)]
struct AccessReview {
    /// It is the caller who is asked about.
    of_caller: bool,
}

#[async_trait]
impl VirtualResource for AccessReview {
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
        let user = if self.of_caller { request.user.clone() } else { subject(&review["spec"]) };
        let selector = field_selector(&review["spec"]["resourceAttributes"]["fieldSelector"]);
        let decided = request.api.authorizer().authorize(&user, &attributes(&review["spec"], &selector));
        let status = match decided {
            Ok(()) => json!({"allowed": true}),
            Err(why) => json!({"allowed": false, "reason": why}),
        };
        Ok(request.accept.write(StatusCode::CREATED, &reviews::answer(target, review, status)))
    }
}

/// The user that a review names.
fn subject(spec: &Value) -> User {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    User {
        name: spec["user"].as_str().unwrap_or("").to_owned(),
        uid: spec["uid"].as_str().unwrap_or("").to_owned(),
        groups: texts(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), texts(v))).collect(),
    }
}

/// The attributes that a review names.
fn attributes<'a>(spec: &'a Value, field_selector: &'a str) -> Attributes<'a> {
    let wanted = &spec["resourceAttributes"];
    let text = |of: &'a Value, key: &str| of[key].as_str().unwrap_or("");
    if !wanted.is_object() {
        let path = &spec["nonResourceAttributes"];
        return Attributes { verb: text(path, "verb"), path: text(path, "path"), ..Attributes::default() };
    }
    Attributes {
        verb: text(wanted, "verb"),
        is_resource: true,
        path: "",
        group: text(wanted, "group"),
        version: text(wanted, "version"),
        resource: text(wanted, "resource"),
        subresource: text(wanted, "subresource"),
        namespace: text(wanted, "namespace"),
        name: text(wanted, "name"),
        field_selector,
    }
}

/// The field selector of a review as the query of a request would have it.
fn field_selector(selector: &Value) -> String {
    if let Some(raw) = selector["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let requirement = |r: &Value| match r["values"].as_array().map(Vec::as_slice) {
        Some([one]) if r["operator"] == "In" => Some(format!("{}={}", r["key"].as_str()?, one.as_str()?)),
        _ => None,
    };
    let requirements = selector["requirements"].as_array().into_iter().flatten();
    requirements.filter_map(requirement).collect::<Vec<_>>().join(",")
}
