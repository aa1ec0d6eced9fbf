//! Kinds of the group `authorization.k8s.io`: reviews of access, which are answered by the authorizers that decide on
//! requests.

mod validation;

use serde_json::{Value, json};

use super::shared::reviews;
use crate::apiserver::{ApiError, ApiRequest, Attributes, User, types::Definition};

const GROUP: &str = "authorization.k8s.io";

/// The resources.
pub(super) fn definitions() -> Vec<Definition> {
    let mut local = reviews::definition(
        GROUP,
        "localsubjectaccessreviews",
        "LocalSubjectAccessReview",
        local_subject_access_review,
    );
    local.resource.namespaced = true;
    vec![
        local,
        reviews::definition(GROUP, "selfsubjectaccessreviews", "SelfSubjectAccessReview", self_subject_access_review),
        reviews::definition(GROUP, "selfsubjectrulesreviews", "SelfSubjectRulesReview", self_subject_rules_review),
        reviews::definition(GROUP, "subjectaccessreviews", "SubjectAccessReview", subject_access_review),
    ]
}

/// What the caller may do.
fn self_subject_access_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    validation::check(GROUP, &review, validation::Subject::Caller)?;
    Ok(answer(request, &request.user, review))
}

/// What somebody may do.
fn subject_access_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    validation::check(GROUP, &review, validation::Subject::Named)?;
    Ok(answer(request, &subject(&review["spec"]), review))
}

/// What a subject may do in a namespace: users who may create these in it may ask, and about no other namespace.
fn local_subject_access_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    validation::check(GROUP, &review, validation::Subject::NamedInNamespace)?;
    Ok(answer(request, &subject(&review["spec"]), review))
}

fn answer(request: &ApiRequest, user: &User, review: Value) -> Value {
    let selector = field_selector(&review["spec"]["resourceAttributes"]["fieldSelector"]);
    let (authorizer, attributes) = (request.api.authorizer(), attributes(&review["spec"], &selector));
    let decided = authorizer.authorize(user, &attributes);
    let mut status = json!({"allowed": decided.is_ok()});
    let reason = decided.err().unwrap_or_else(|| authorizer.reason(user, &attributes));
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    reviews::with_status(review, status)
}

/// All that the caller may do in a namespace.
fn self_subject_rules_review(request: &ApiRequest, review: Value) -> Result<Value, ApiError> {
    let Some(namespace) = review["spec"]["namespace"].as_str().filter(|namespace| !namespace.is_empty()) else {
        return Err(ApiError::bad_request("no namespace on request"));
    };
    let rules = request.api.authorizer().rules(&request.user, namespace);
    let resource = rules.resource.iter().map(|rule| {
        let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources});
        if !rule.names.is_empty() {
            shown["resourceNames"] = json!(rule.names);
        }
        shown
    });
    let other = rules.non_resource.iter().map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
    let mut status = json!({
        "resourceRules": resource.collect::<Vec<_>>(),
        "nonResourceRules": other.collect::<Vec<_>>(),
        "incomplete": !rules.unresolved.is_empty(),
    });
    match rules.unresolved.as_slice() {
        [] => {}
        [one] => status["evaluationError"] = json!(one),
        many => status["evaluationError"] = json!(format!("[{}]", many.join(", "))),
    }
    let mut answer = reviews::answer_of(&review, json!({}), status);
    answer["spec"] = json!({});
    Ok(answer)
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
