//! What kube-apiserver 1.36 answered: to mistyped fields, to CustomResourceDefinitions with good and bad schemas, and to
//! objects of custom types.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    effort::Effort,
    field::FieldError,
    schema::{Schema, canonicalize, check, default, structural, unknown_formats, validate},
    testing,
};

fn recorded(file: &str) -> Vec<Value> {
    document(file).as_array().unwrap().clone()
}

fn document(file: &str) -> Value {
    let path = format!("{}/tests/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Errors as the API writes their causes; upstream's order follows its maps, which have none.
fn causes(errors: &[FieldError]) -> Vec<Value> {
    let mut causes: Vec<Value> =
        errors.iter().map(|error| json!([error.cause.as_str(), error.field, shortened(&error.detail)])).collect();
    causes.sort_by_key(ToString::to_string);
    causes.dedup();
    causes
}

/// Where the value is a whole schema, upstream writes Go's own form of it.
fn shortened(detail: &str) -> String {
    match detail.find(": only [Description") {
        Some(at) => format!("Invalid value: …{}", &detail[at..]),
        None => detail.to_owned(),
    }
}

fn sorted(list: &Value) -> Vec<Value> {
    let mut list = list.as_array().cloned().unwrap_or_default();
    list.sort_by_key(ToString::to_string);
    list
}

#[test]
fn mistyped_fields_of_built_in_types_are_told_as_by_kube_apiserver() {
    for case in recorded("decoding") {
        let of = testing::schema(case["type"].as_str().unwrap());
        let wrong =
            check(&of, &case["object"], of.type_name().and_then(|name| name.rsplit('.').next()).unwrap_or_default())
                .wrong;
        assert_eq!(json!(wrong), json!([case["wrong"]]), "{}", case["object"]);
    }
}

#[test]
fn quantities_and_times_are_written_as_by_kube_apiserver() {
    let all = document("scalars");
    let (volume, event) = (testing::schema("core/v1.EmptyDirVolumeSource"), testing::schema("core/v1.Event"));
    let mut wrong = Vec::new();
    for case in all["quantities"].as_array().unwrap() {
        let mut value = json!({"sizeLimit": case[0]});
        canonicalize(&volume, &mut value);
        // Larger ones are the largest of 64 bits here.
        if ["9223372036854775808", "99999999999999999999", "1e19", "1000000E"].iter().any(|large| case[0] == *large) {
            continue;
        }
        if value["sizeLimit"] != case[1] {
            wrong.push(format!("{} is {} instead of {}", case[0], value["sizeLimit"], case[1]));
        }
    }
    for case in all["times"].as_array().unwrap() {
        let mut value = json!({"firstTimestamp": case[0]});
        let refused = !check(&event, &value, "Event").wrong.is_empty();
        canonicalize(&event, &mut value);
        // The last day of the year 9999 is beyond what clients in Rust can read.
        let refused_here = case[1] == "refused" || case[0] == "9999-12-31T23:59:59Z";
        let fits = if refused_here { refused } else { !refused && value["firstTimestamp"] == case[1] };
        if !fits {
            wrong.push(format!("{} is {} ({refused}) instead of {}", case[0], value["firstTimestamp"], case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn schemas_are_refused_in_the_words_of_kube_apiserver() {
    let mut wrong = Vec::new();
    let cases = recorded("structural/schemas");
    assert!(cases.len() > 100);
    // What a rule says of itself is for the crate that has its language.
    for case in cases.into_iter().filter(|case| case["name"] != "rule optionalOldSelf") {
        let status = case["status"] == true;
        let errors = structural::validate(
            &case["schema"],
            "spec.validation.openAPIV3Schema",
            status,
            &Arc::new(Schema::any()),
            &mut (),
        );
        if causes(&errors) != sorted(&case["causes"]) {
            wrong.push(format!("{}: {:#?} instead of {:#?}", case["name"], causes(&errors), sorted(&case["causes"])));
        }
        let schema = structural::read(&case["schema"], &testing::schema("meta/v1.ObjectMeta"));
        let warnings: Vec<String> =
            unknown_formats(&schema).iter().map(|format| format!("unrecognized format {format:?}")).collect();
        if errors.is_empty() && json!(warnings) != json!(case["warnings"].as_array().cloned().unwrap_or_default()) {
            wrong.push(format!("{}: the warnings {warnings:?} instead of {}", case["name"], case["warnings"]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn custom_objects_are_processed_as_by_kube_apiserver() {
    let types = recorded("structural/types");
    let mut wrong = Vec::new();
    let cases = recorded("structural/objects");
    assert!(cases.len() > 200);
    for case in cases {
        let of = types.iter().find(|of| of["name"] == case["schema"]).unwrap();
        let schema = structural::read(&of["schema"], &testing::schema("meta/v1.ObjectMeta"));
        let mut object = case["object"].clone();
        if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = json!("x");
        }
        let mut tell = |what: &str, found: Value, expected: Value| {
            if found != expected {
                wrong.push(format!("{} {}: {what}: {found:#} instead of {expected:#}", case["schema"], case["object"]));
            }
        };
        let problems = check(&schema, &object, "Wi");
        let warnings: Vec<Value> =
            problems.unknown.iter().map(|path| json!(format!("unknown field {path:?}"))).collect();
        tell("warnings", json!(sorted(&json!(warnings))), json!(sorted(&case["warnings"])));
        if let Some(refused) = case["refused"].as_str() {
            tell("refused", json!(problems.wrong), json!([refused]));
            continue;
        }
        tell("wrong", json!(problems.wrong), json!([]));
        canonicalize(&schema, &mut object);
        default(&schema, &mut object);
        let errors = validate(&schema, &object, None, &mut Effort::unlimited());
        tell("causes", json!(causes(&errors)), json!(sorted(&case["causes"])));
        if case["causes"].is_null() {
            let mut expected = case.get("result").unwrap_or(&case["object"]).clone();
            expected["metadata"]["name"] = object["metadata"]["name"].clone();
            tell("result", object.clone(), expected);
            assert!(validate(&schema, &object, Some(&object), &mut Effort::unlimited()).is_empty());
        }
        let once = object.clone();
        canonicalize(&schema, &mut object);
        default(&schema, &mut object);
        assert_eq!(object, once, "once more changes nothing");
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn fields_that_are_missing_are_reported_after_those_that_are_wrong() {
    let item = json!({"type": "object", "required": ["port"], "properties": {"name": {"type": "string"}},
        "allOf": [{"required": ["name"], "properties": {"path": {"minLength": 1}}}]});
    let schema = json!({"type": "object", "required": ["selector"], "properties": {
        "selector": {"type": "object"}, "endpoints": {"type": "array", "items": item}}});
    let schema = structural::read(&schema, &testing::schema("meta/v1.ObjectMeta"));
    let object = json!({"endpoints": [{"path": ""}, {"name": 5}]});
    let fields: Vec<String> =
        validate(&schema, &object, None, &mut Effort::unlimited()).into_iter().map(|error| error.field).collect();
    let expected = [
        "endpoints[0].path",
        "endpoints[0].name",
        "<nil>",
        "endpoints[0].port",
        "endpoints[1].name",
        "endpoints[1].port",
        "selector",
    ];
    assert_eq!(fields, expected);
}
