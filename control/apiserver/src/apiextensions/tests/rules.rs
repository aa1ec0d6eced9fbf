//! Objects are validated by the rules of their definitions.

use serde_json::{Value, json};

use super::{DEFINITIONS, definition, establish, serve};
use crate::{
    apiserver::tests::{Reply, call, with_namespace},
    control_plane::instance::Instance,
    kinds::tests::recorded::warnings_of,
};

const WIDGETS: &str = "/apis/test.example/v1/namespaces/n/widgets";

/// A definition whose versions have this schema.
fn with_schema(schema: &Value) -> Value {
    let mut defined = definition("widgets", "Widget");
    for version in defined["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"] = schema.clone();
        version.as_object_mut().unwrap().remove("selectableFields");
    }
    defined
}

fn schema() -> Value {
    json!({"type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.metadata.name.startsWith('w')", "fieldPath": ".spec.size", "message": "only of widgets whose names begin with w"},
            {"rule": "!has(self.status) || !has(self.status.phase) || self.status.phase != 'Lost'", "reason": "FieldValueForbidden"},
        ],
        "properties": {
            "spec": {"type": "object", "required": ["size"],
                "x-kubernetes-validations": [{"rule": "!has(self.least) || self.least <= self.size",
                    "messageExpression": "self.least < 5 ? 'size is too small' : 'size is much too small'"}],
                "properties": {
                    "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self != 13"}]},
                    "least": {"type": "integer"},
                    "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]},
                    "names": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 5,
                        "x-kubernetes-validations": [{"rule": "self != 'x'", "reason": "FieldValueDuplicate"}]}},
                }},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}})
}

async fn with_rules() -> (Instance, tokio_util::sync::DropGuard) {
    let api = with_namespace().await;
    let stop = serve(&api).drop_guard();
    establish(&api, with_schema(&schema())).await;
    (api, stop)
}

fn widget(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "test.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// The errors of an answer, each with its field and reason.
fn causes(reply: &Reply) -> Vec<String> {
    let causes = reply.body["details"]["causes"].as_array().into_iter().flatten();
    causes
        .map(|cause| {
            [&cause["field"], &cause["reason"], &cause["message"]].map(|text| text.as_str().unwrap()).join(" ")
        })
        .collect()
}

#[tokio::test]
async fn objects_that_rules_forbid_are_refused_in_upstreams_words() {
    let (api, _stop) = with_rules().await;
    for (name, spec, wanted) in [
        ("w", json!({"size": 1}), &[][..]),
        (
            "a",
            json!({"size": 1}),
            &["spec.size FieldValueInvalid Invalid value: only of widgets whose names begin with w"][..],
        ),
        ("w1", json!({"size": 13}), &["spec.size FieldValueInvalid Invalid value: 13: failed rule: self != 13"]),
        ("w2", json!({"size": 1, "least": 2}), &["spec FieldValueInvalid Invalid value: size is too small"]),
        ("w3", json!({"size": 1, "names": ["a", "x"]}), &["spec.names[1] FieldValueDuplicate Duplicate value: \"x\""]),
        // A rule that compares has nothing to compare with yet.
        ("w4", json!({"size": 1, "fixed": "a"}), &[]),
    ] {
        let reply = call(&api, "POST", WIDGETS, widget(name, &spec)).await;
        assert_eq!(causes(&reply), wanted, "{spec}: {}", reply.body);
        assert_eq!(reply.code, if wanted.is_empty() { 201 } else { 422 });
    }
    let path = format!("{WIDGETS}/w4");
    let changed = call(&api, "PATCH", &path, json!({"spec": {"fixed": "b"}})).await;
    assert_eq!(causes(&changed), ["spec.fixed FieldValueInvalid Invalid value: \"b\": is immutable"]);
    let status = call(&api, "PATCH", &format!("{path}/status"), json!({"status": {"phase": "Lost"}})).await;
    let rule = "!has(self.status) || !has(self.status.phase) || self.status.phase != 'Lost'";
    assert_eq!(causes(&status), [format!("<nil> FieldValueForbidden Forbidden: failed rule: {rule}")]);
    // The rule is satisfied by another path to the same object.
    let scaled = call(&api, "PATCH", &format!("{path}/status"), json!({"status": {"phase": "Found"}})).await;
    assert_eq!(scaled.code, 200, "{}", scaled.body);
}

#[tokio::test]
async fn rules_are_evaluated_for_objects_that_are_otherwise_good() {
    let (api, _stop) = with_rules().await;
    let gate = "<nil> FieldValueInvalid Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    for (spec, blocking) in [
        (json!({"least": 2}), "spec.size FieldValueRequired Required value"),
        (
            json!({"size": 1, "names": ["a", "b", "c", "x"]}),
            "spec.names FieldValueTooMany Too many: 4: must have at most 3 items",
        ),
        (
            json!({"size": 1, "names": ["xxxxxx"]}),
            "spec.names[0] FieldValueTooLong Too long: may not be more than 5 bytes",
        ),
        (
            json!({"size": "13"}),
            "spec.size FieldValueTypeInvalid Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
    ] {
        let reply = call(&api, "POST", WIDGETS, widget("a", &spec)).await;
        assert_eq!(causes(&reply), [blocking, gate], "{spec}");
    }
}

/// What kube-apiserver answers, errors and warnings, after rules were added that a stored object breaks.
#[tokio::test]
async fn what_has_not_changed_is_tolerated_with_a_warning() {
    let recorded: Value = serde_json::from_str(include_str!("ratcheting.json")).unwrap();
    let objects = "/apis/test.example/v1/namespaces/n/gadgets";
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    establish(&api, recorded["definition"].clone()).await;
    let mut object = recorded["object"].clone();
    let stored = call(&api, "POST", objects, object.clone()).await;
    assert_eq!(stored.code, 201, "{}", stored.body);
    let path = format!("{DEFINITIONS}/gadgets.test.example");
    let changed = call(&api, "PATCH", &path, recorded["rules"].clone()).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    // The rules are there once another object is refused.
    object["metadata"]["name"] = "other".into();
    let mut refused = 0;
    for _ in 0..500 {
        refused = call(&api, "POST", &format!("{objects}?dryRun=All"), object.clone()).await.code;
        if refused == 422 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(refused, 422);
    let answers = recorded["answers"].as_array().unwrap();
    assert!(answers.len() > 5);
    for answer in answers {
        let path = format!("{objects}/g{}?dryRun=All", answer["path"].as_str().unwrap());
        let reply = call(&api, "PATCH", &path, answer["patch"].clone()).await;
        let causes = reply.body["details"]["causes"].as_array().into_iter().flatten();
        let mut errors: Vec<String> = causes
            .map(|cause| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap()))
            .collect();
        errors.sort();
        let mut warnings = warnings_of(&reply);
        warnings.sort();
        let is = json!({"path": answer["path"], "patch": answer["patch"], "code": reply.code, "errors": errors, "warnings": warnings});
        assert_eq!(is, *answer);
    }
}

#[tokio::test]
async fn definitions_whose_rules_cannot_be_used_are_refused() {
    let api = crate::apiserver::tests::api();
    let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    for (rule, list, wanted) in [
        (json!({"rule": "self.none"}), false, format!("{at}.rule: Invalid value: {{\"Rule\":\"self.none\"")),
        (json!({"rule": "1"}), false, "cel expression must evaluate to a bool".to_owned()),
        (
            json!({"rule": "true", "messageExpression": "1"}),
            false,
            "messageExpression must evaluate to a string".to_owned(),
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            false,
            format!("{at}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"),
        ),
        (
            json!({"rule": "true", "fieldPath": ".none"}),
            false,
            format!("{at}.fieldPath: Invalid value: \".none\": must be a valid path"),
        ),
        (json!({"rule": "true", "reason": "None"}), false, format!("{at}.reason: Unsupported value: \"None\"")),
        (
            json!({"rule": "self.all(a, self.all(b, a != b))"}),
            true,
            format!("{at}.rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"),
        ),
    ] {
        let spec = if list {
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [rule]})
        } else {
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]})
        };
        let mut wrong = definition("widgets", "Widget");
        wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
        wrong["spec"]["versions"][0].as_object_mut().unwrap().remove("selectableFields");
        let refused = call(&api, "POST", DEFINITIONS, wrong).await;
        assert_eq!(refused.code, 422, "{rule}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(&wanted), "{rule}: {message}");
    }
}

/// What was stored before a limit was lowered stays as it is; only the sum is refused again.
#[test]
fn a_stored_schema_is_not_refused_for_the_cost_of_a_rule() {
    use crate::{apiserver::pipeline::validation::errors::Errors, kinds::apiextensions::custom_resource_definition};

    let spec = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 1500, "items": {"type": "string", "maxLength": 3},
        "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a != b))"}]}}});
    let mut defined = with_schema(&json!({"type": "object", "properties": {"spec": spec}}));
    defined["status"] = json!({"storedVersions": ["v1"]});
    let strategy = custom_resource_definition::definition().resource.strategy;
    let found = |old: Option<&Value>| {
        let mut errors = Errors::default();
        strategy.validate_against(&defined, old, &mut errors);
        errors
            .0
            .iter()
            .filter(|error| error.detail.contains("estimated rule cost"))
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(None).len(), 1, "{:?}", found(None));
    assert!(found(None)[0].contains("properties[l].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of 1."), "{:?}", found(None));
    assert_eq!(found(Some(&defined)), [""; 0]);
    let mut other = defined.clone();
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "other".into();
    assert_eq!(found(Some(&other)).len(), 1);
}
