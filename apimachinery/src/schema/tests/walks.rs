//! What holds of all walks, on built-in types and on custom ones.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{
    MAX_DEPTH,
    effort::Effort,
    field::Path,
    schema::{
        FieldProblems, Kind, Schema, canonical, canonicalize, check, default, drop_invalid_fields, prune, same,
        structural, validate, validate::values,
    },
    testing::{TYPES, schema},
};

const POD: &str = "core/v1.Pod";

fn stored(kind: &str, mut value: Value) -> Value {
    canonicalize(&schema(kind), &mut value);
    value
}

#[test]
fn values_are_stored_as_upstream_writes_them() {
    let pod = json!({"metadata": {"name": "x", "creationTimestamp": null, "labels": {"a": null}, "odd": 1},
        "spec": {"hostNetwork": false, "priority": 0, "tolerations": [], "nodeSelector": {}, "overhead": {"cpu": 0.5, "memory": "1024Mi"},
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "2048Ki"}}],
            "containers": [{"name": "c", "args": [null, "a"], "env": null, "resources": {}, "securityContext": {"privileged": false}}]},
        "status": {"startTime": "2020-01-01T02:00:00.9+02:00"}});
    assert_eq!(
        stored(POD, pod),
        json!({"metadata": {"name": "x", "labels": {"a": ""}},
            "spec": {"priority": 0, "overhead": {"cpu": "500m", "memory": "1Gi"},
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "2Mi"}}],
                "containers": [{"name": "c", "args": ["", "a"], "resources": {}, "securityContext": {"privileged": false}}]},
            "status": {"startTime": "2020-01-01T00:00:00Z"}})
    );
    let secret = stored("core/v1.Secret", json!({"data": {"a": "eA=\n=", "b": null}, "immutable": false}));
    assert_eq!(secret, json!({"data": {"a": "eA==", "b": ""}, "immutable": false}));
    let lease = stored("coordination/v1.Lease", json!({"spec": {"renewTime": "2020-01-01T00:00:00.123456789Z"}}));
    assert_eq!(lease["spec"]["renewTime"], "2020-01-01T00:00:00.123456Z");
    let metrics = stored("metrics/v1beta1.NodeMetrics", json!({"window": "90s", "usage": {"cpu": "1000m"}}));
    assert_eq!((&metrics["window"], &metrics["usage"]["cpu"]), (&json!("1m30s"), &json!("1")));
}

#[test]
fn a_field_of_several_forms_is_checked_and_pruned_by_the_one_it_has() {
    let of = schema("apiextensions/v1.JSONSchemaProps");
    let mut value = json!({"items": {"type": "string", "odd": 1}, "additionalProperties": true,
        "properties": {"a": {"additionalProperties": {"odd": 1}}}, "default": {"anything": [1]}, "enum": [1, "a"]});
    let problems = check(&of, &value, "X");
    assert_eq!(problems.unknown, ["items.odd", "properties.a.additionalProperties.odd"]);
    assert_eq!(problems.wrong, Vec::<String>::new());
    prune(&of, &mut value);
    assert_eq!(value["items"], json!({"type": "string"}));
    assert_eq!((&value["default"], &value["enum"]), (&json!({"anything": [1]}), &json!([1, "a"])));
    let wrong = check(&of, &json!({"items": true}), "X").wrong;
    assert_eq!(
        wrong,
        ["json: cannot unmarshal bool into Go struct field JSONSchemaProps.items of type v1.JSONSchemaPropsOrArray"]
    );
}

#[test]
fn mistyped_fields_are_told_as_gos_decoder_does() {
    for (of, value, words) in [
        (
            POD,
            json!({"metadata": {"labels": {"a": 1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            POD,
            json!({"spec": {"restartPolicy": 1}}),
            "json: cannot unmarshal number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
        ),
        (
            POD,
            json!({"spec": {"containers": {}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            POD,
            json!({"spec": {"priority": 3_000_000_000_i64}}),
            "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (POD, json!([]), "json: cannot unmarshal array into Go value of type v1.Pod"),
        ("core/v1.Secret", json!({"data": {"a": "?"}}), "illegal base64 data at input byte 0 of data.a"),
    ] {
        assert_eq!(check(&schema(of), &value, "X").wrong, [words]);
    }
}

#[test]
fn fields_that_cannot_be_decoded_are_dropped() {
    let mut pod = json!({"metadata": {"labels": {"a": 1, "b": "c"}}, "spec": {"priority": "x", "containers": [{"name": "c", "ports": [5]}, 7]}});
    let dropped = drop_invalid_fields(&schema(POD), &mut pod);
    assert_eq!(dropped, ["metadata.labels[a]", "spec.containers[0].ports[0]", "spec.containers[1]", "spec.priority"]);
    assert_eq!(check(&schema(POD), &pod, "Pod"), FieldProblems::default());
    assert_eq!(pod["metadata"]["labels"], json!({"b": "c"}));
    // Of a custom resource only the metadata is one of Go's types.
    let of = structural::read(
        &json!({"type": "object", "properties": {"spec": {"type": "string"}, "e": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
        &schema("meta/v1.ObjectMeta"),
    );
    let mut object = json!({"metadata": {"name": 5, "uid": "u"}, "spec": 7, "e": {"metadata": "x", "a": 1}});
    assert_eq!(drop_invalid_fields(&of, &mut object), ["e.metadata", "metadata.name"]);
    assert_eq!(object, json!({"metadata": {"uid": "u"}, "spec": 7, "e": {"a": 1}}));
}

/// What kube-openapi's validator says.
#[test]
fn what_is_neither_integer_nor_text_is_refused_by_each_schema_that_wants_one() {
    let forms = json!([{"type": "integer"}, {"type": "string"}]);
    let of = structural::read(
        &json!({"type": "object", "properties": {
            "a": {"x-kubernetes-int-or-string": true, "anyOf": forms},
            "b": {"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": forms}, {"pattern": "^x"}]},
            "c": {"x-kubernetes-int-or-string": true},
            "d": {"x-kubernetes-int-or-string": true, "nullable": true, "anyOf": forms, "pattern": "^x", "maximum": 5},
        }}),
        &schema("meta/v1.ObjectMeta"),
    );
    let found = |value: Value| -> Vec<String> {
        let errors = validate(&of, &value, None, &mut Effort::unlimited()).into_iter();
        errors.map(|error| format!("{}: {}", error.field, error.detail)).collect()
    };
    let wrong = |field: &str, wanted: &str, found: &str| {
        format!("{field}: Invalid value: {found:?}: {field} in body must be of type {wanted}: {found:?}")
    };
    let whole = |why: &str| format!("<nil>: Invalid value: \"\": {why}");
    let any_of = |field: &str| whole(&format!("{field:?} must validate at least one schema (anyOf)"));
    let all_of = whole("\"b\" must validate all the schemas (allOf)");
    let checked = |field: &str| whole(&format!("Checked value must be of type integer (default format) in {field}"));
    let both = "integer,string";
    for (value, kind) in [(json!(true), "boolean"), (json!([1]), "array"), (json!({}), "object")] {
        let all = [wrong("a", both, kind), any_of("a"), wrong("a", "integer", kind)];
        assert_eq!(found(json!({"a": value})), all);
    }
    let number = |field: &str| {
        [wrong(field, both, "number"), any_of(field), wrong(field, "integer", "number"), checked(field)].to_vec()
    };
    assert_eq!(found(json!({"a": 1.5})), number("a"));
    assert_eq!(found(json!({"a": null})), [wrong("a", both, "null")]);
    let boolean = [wrong("b", both, "boolean"), any_of("b"), wrong("b", "integer", "boolean"), all_of.clone()];
    assert_eq!(found(json!({"b": true})), boolean);
    assert_eq!(found(json!({"b": 1.5})), [number("b"), vec![all_of.clone()]].concat());
    let pattern = "b: Invalid value: \"y\": b in body should match '^x'".to_owned();
    assert_eq!(found(json!({"b": "y"})), [pattern, all_of]);
    assert_eq!(found(json!({"c": true})), [wrong("c", both, "boolean")]);
    let maximum = "d: Invalid value: 7.5: d in body should be less than or equal to 5".to_owned();
    assert_eq!(found(json!({"d": 7.5})), [number("d"), vec![maximum]].concat());
    for fine in [json!({"a": 1}), json!({"a": 2.0}), json!({"a": "x"}), json!({"b": "x"}), json!({"d": null})] {
        assert_eq!(found(fine), Vec::<String>::new());
    }
}

#[test]
fn an_update_is_not_blamed_for_what_was_there_before() {
    let of = structural::read(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "e": {"type": "string", "enum": ["x", "y"]},
            "l": {"type": "array", "items": {"type": "string", "maxLength": 2}},
            "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
                {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 2}}}},
            "n": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "maxItems": 1, "items":
                {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}},
            "u": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "minProperties": 3},
            "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "j": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "anyOf": [{"properties": {"a": {"enum": ["1"]}}}]}}}}}),
        &schema("meta/v1.ObjectMeta"),
    );
    let fields = |old: Value, new: Value| -> Vec<String> {
        let (old, new) = (json!({"spec": old}), json!({"spec": new}));
        validate(&of, &new, Some(&old), &mut Effort::unlimited()).into_iter().map(|error| error.field).collect()
    };
    assert_eq!(fields(json!({"e": "bad"}), json!({"e": "bad", "l": ["a"]})), Vec::<String>::new());
    assert_eq!(fields(json!({"e": "bad"}), json!({"e": "worse"})), ["spec.e"]);
    // Items of a plain list have no counterpart, those of a map have.
    assert_eq!(fields(json!({"l": ["long"]}), json!({"l": ["long", "a"]})), ["spec.l[0]"]);
    let item = |k: &str, v: &str| json!({"k": k, "v": v});
    let moved = fields(json!({"m": [item("a", "long")]}), json!({"m": [item("b", "longer"), item("a", "long")]}));
    assert_eq!(moved, ["spec.m[0].v"]);
    // The order of a map's items is no change, that of another list's is.
    let [a, b] = [item("a", "x"), item("b", "x")];
    assert_eq!(fields(json!({"n": [a, b]}), json!({"n": [b, a]})), Vec::<String>::new());
    assert_eq!(fields(json!({"n": [a, b]}), json!({"n": [b, item("a", "y")]})), ["spec.n"]);
    let unknown = |order: [&Value; 2]| json!({"u": {"n": order, "x": {"y": 1}}});
    assert_eq!(fields(unknown([&a, &b]), unknown([&b, &a])), ["spec.u"]);
    // What the schema does not describe has always changed, and with it what it is in; nothing else of that is blamed again.
    assert_eq!(fields(unknown([&a, &b]), unknown([&a, &b])), ["spec.u"]);
    let within = json!({"u": {"n": 1}, "e": "bad", "l": ["long"]});
    assert_eq!(fields(within.clone(), within), ["spec.u"]);
    assert_eq!(fields(json!({"u": {}}), json!({"u": {}})), Vec::<String>::new());
    assert_eq!(fields(json!({"s": ["a", "a"]}), json!({"s": ["a", "a", "b", "b"]})), Vec::<String>::new());
    assert_eq!(fields(json!({"s": ["a"]}), json!({"s": ["a", "a"]})), ["spec.s[1]"]);
    assert_eq!(fields(json!({"j": {"a": "2"}}), json!({"j": {"a": "2"}, "e": "x"})), Vec::<String>::new());
    assert_eq!(fields(json!({"j": {"a": "2"}}), json!({"j": {"a": "2", "b": "x"}})), ["<nil>", "spec.j.a"]);
}

/// A value nested deeper than any body can hold, in a field whose schema is as deep.
fn bomb(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!("x"), |value, _| wrap(value))
}

fn object(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}

#[test]
fn no_depth_overflows_the_stack() {
    let deep = 1_000;
    let nested = bomb(deep, |inner| {
        let mut node = Map::new();
        node.insert("type".to_owned(), json!("object"));
        node.insert("properties".to_owned(), object("a", inner));
        Value::Object(node)
    });
    let object_meta = schema("meta/v1.ObjectMeta");
    let custom = structural::read(&nested, &object_meta);
    assert!(!structural::validate(&nested, "schema", true, &Arc::new(Schema::any()), &mut ()).is_empty());
    let junctors = bomb(deep, |inner| object("not", inner));
    let junctors = object("allOf", Value::Array(vec![junctors]));
    let negated = structural::read(&junctors, &object_meta);
    assert!(!structural::validate(&junctors, "schema", true, &Arc::new(Schema::any()), &mut ()).is_empty());
    let recursive = schema("apiextensions/v1.JSONSchemaProps");
    for wrap in [|inner| object("a", inner), |inner| Value::Array(vec![inner]), |inner| object("not", inner)] {
        let value = bomb(deep, wrap);
        for of in [&custom, &negated, &*recursive, &Schema::any(), &Schema::default()] {
            let _ = check(of, &value, "X");
            let _ = validate(of, &value, Some(&Value::Null), &mut Effort::unlimited());
            let _ = canonical(of, &value);
            let mut value = value.clone();
            drop_invalid_fields(of, &mut value);
            default(of, &mut value);
            prune(of, &mut value);
            canonicalize(of, &mut value);
        }
    }
    // As deep as a body can be, nothing is lost.
    let allowed = bomb(MAX_DEPTH - 1, |inner| object("not", inner));
    let mut pruned = allowed.clone();
    prune(&Schema::any(), &mut pruned);
    assert_eq!(pruned, allowed);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (-2i64..9).prop_map(Value::from),
        (0.0..9.0).prop_map(|n: f64| Value::from(n)),
        "(a|1Gi|2020-01-01T00:00:00Z|eA==|)".prop_map(Value::from)
    ];
    let names = "(metadata|spec|name|labels|containers|env|resources|limits|ports|type|properties|items|not|anyOf|default|required|status|a)";
    leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(names, inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Structural schemas, most of them good ones.
fn any_schema() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "default": "d", "maxLength": 1})),
        Just(json!({"type": "integer", "nullable": true, "minimum": 1})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"type": "object", "additionalProperties": true})),
        Just(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true})
        ),
    ];
    scalar.prop_recursive(4, 20, 4, |inner| {
        prop_oneof![
            prop::collection::btree_map("(name|labels|containers|env|ports|type|items|a)", inner.clone(), 0..5)
                .prop_map(|properties| json!({"type": "object", "properties": properties})),
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            inner.prop_map(|values| json!({"type": "object", "additionalProperties": values})),
        ]
    })
}

/// The types of both sorts that a value is tried with.
fn types(custom: &Value) -> Vec<Arc<Schema>> {
    let root = json!({"type": "object", "properties": {"spec": custom, "status": custom}});
    let custom = Arc::new(structural::read(&root, &schema("meta/v1.ObjectMeta")));
    let built_in = [POD, "core/v1.Service", "apiextensions/v1.JSONSchemaProps", "core/v1.Secret", "meta/v1.WatchEvent"];
    built_in.iter().map(|name| schema(name)).chain([custom]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_stored_form_is_stable_and_known(value in any_json(), custom in any_schema()) {
        for of in types(&custom) {
            let mut once = value.clone();
            drop_invalid_fields(&of, &mut once);
            canonicalize(&of, &mut once);
            let mut twice = once.clone();
            canonicalize(&of, &mut twice);
            prop_assert_eq!(&once, &twice, "canonical twice");
            prop_assert_eq!(check(&of, &once, "X").unknown, Vec::<String>::new());
            prop_assert!(same(&of, &once, &value) || !check(&of, &value, "X").wrong.is_empty());
            let compared = canonical(&of, &once);
            prop_assert_eq!(&canonical(&of, &compared), &compared);
            prop_assert!(same(&of, &compared, &once), "{} {}", compared, once);
        }
    }

    #[test]
    fn pruning_takes_exactly_what_is_unknown(value in any_json(), custom in any_schema()) {
        for of in types(&custom) {
            let mut pruned = value.clone();
            prune(&of, &mut pruned);
            let unknown = check(&of, &value, "X").unknown;
            if check(&of, &value, "X").wrong.is_empty() {
                prop_assert_eq!(unknown.is_empty(), pruned == value, "{:?} {} {}", unknown, value, pruned);
            }
            let mut twice = pruned.clone();
            prune(&of, &mut twice);
            prop_assert_eq!(&pruned, &twice);
        }
    }

    #[test]
    fn objects_are_the_same_if_their_canonical_forms_are(one in any_json(), other in any_json(), custom in any_schema()) {
        for of in types(&custom) {
            let mut stored = one.clone();
            canonicalize(&of, &mut stored);
            for (one, other) in [(&one, &other), (&one, &stored), (&other, &stored), (&one, &canonical(&of, &one))] {
                let expected = canonical(&of, one) == canonical(&of, other);
                prop_assert_eq!(same(&of, one, other), expected, "{} {}", one, other);
            }
        }
    }

    #[test]
    fn good_schemas_pass_and_defaults_settle(value in any_json(), custom in any_schema()) {
        let root = json!({"type": "object", "properties": {"spec": custom}});
        prop_assert_eq!(structural::validate(&root, "s", true, &Arc::new(Schema::any()), &mut ()), Vec::new());
        for of in types(&custom) {
            let mut once = value.clone();
            canonicalize(&of, &mut once);
            default(&of, &mut once);
            let mut twice = once.clone();
            default(&of, &mut twice);
            prop_assert_eq!(&once, &twice);
            // Embedded objects are looked at each time.
            prop_assert_eq!(values(&of, &once, Some(&once), &mut Path::default()), Vec::new());
            let _ = validate(&of, &once, None, &mut Effort::unlimited());
            let _ = validate(&of, &value, Some(&once), &mut Effort::unlimited());
        }
    }

    #[test]
    fn no_schema_panics(schema_text in any_json(), value in any_json(), pattern in "[-\\[\\](){}*+?|^$.\\\\a&~,0-9:PQEdwsxz<]{0,12}") {
        let _ = structural::validate(&schema_text, "s", true, &Arc::new(Schema::any()), &mut ());
        let of = structural::read(&schema_text, &schema("meta/v1.ObjectMeta"));
        let _ = (check(&of, &value, "X"), validate(&of, &value, None, &mut Effort::unlimited()), canonical(&of, &value));
        let patterned = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}});
        let errors = structural::validate(&patterned, "s", false, &Arc::new(Schema::any()), &mut ());
        let of = structural::read(&patterned, &schema("meta/v1.ObjectMeta"));
        let found = validate(&of, &json!({"a": "a-0"}), None, &mut Effort::unlimited());
        prop_assert!(errors.is_empty() || found.is_empty(), "what was refused matches everything");
    }
}

#[test]
fn every_built_in_type_is_stable_when_it_is_empty() {
    for name in TYPES.names() {
        let of = schema(name);
        if !matches!(of.resolved().kind, Kind::Object(_)) {
            continue;
        }
        let mut value = json!({});
        canonicalize(&of, &mut value);
        assert_eq!(check(&of, &value, "X"), FieldProblems::default(), "{name}: {value}");
    }
}
