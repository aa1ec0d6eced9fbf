//! Sets of fields and their text, in tables.

use serde_json::{Value, json};

use super::set;
use crate::managed_fields::{FieldSet, FieldsV1Error, Path, PathElement, PathElementError};

#[test]
fn documents_are_read_and_written_in_the_order_of_path_elements() {
    for text in [
        r#"{}"#,
        r#"{"f:a":{}}"#,
        r#"{"f:a":{".":{},"f:b":{}},"f:c":{"f:d":{}}}"#,
        r#"{"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{}},"k:{\"containerPort\":80,\"protocol\":\"UDP\"}":{},"k:{\"containerPort\":443,\"protocol\":\"TCP\"}":{}}}"#,
        r#"{"f:finalizers":{".":{},"v:\"a\"":{},"v:\"b\"":{}}}"#,
        r#"{"f:set":{"v:2":{},"v:10":{},"v:\"a\"":{},"v:false":{},"v:true":{}}}"#,
        r#"{"f:env":{"k:{\"name\":\"A\\u003c\\u0026\\u003e\"}":{}}}"#,
        r#"{"f:mixed":{"f:z":{},"k:{\"a\":1}":{},"v:1":{},"i:2":{},"i:10":{}}}"#,
        r#"{"f:with\"quotes":{},"f:with.dots":{},"f:ä":{}}"#,
    ] {
        let document: Value = serde_json::from_str(text).expect("JSON");
        let set = set(document.clone());
        assert_eq!(set.to_fields_v1_json(), text);
        assert_eq!(set.to_fields_v1(), document);
    }
}

#[test]
fn documents_of_later_servers_lose_what_is_not_known() {
    assert_eq!(set(json!({"x:new": {"f:a": {}}, "f:b": {}})), set(json!({"f:b": {}})));
    // A field in which nothing known is left is in the set itself.
    assert_eq!(set(json!({"f:b": {"x:new": {}}})), set(json!({"f:b": {}})));
    assert_eq!(set(json!({"f:b": {"f:c": {}, ".": {"f:ignored": {}}}})), set(json!({"f:b": {"f:c": {}, ".": {}}})));
}

#[test]
fn malformed_documents_are_refused() {
    let malformed = |key: &str| FieldsV1Error::PathElement(PathElementError::Malformed(key.to_owned()));
    for (document, error) in [
        (json!(null), FieldsV1Error::NotAnObject),
        (json!([]), FieldsV1Error::NotAnObject),
        (json!({"f:a": 1}), FieldsV1Error::NotAnObject),
        (json!({"a": {}}), malformed("a")),
        (json!({"": {}}), malformed("")),
        (json!({"foo:a": {}}), malformed("foo:a")),
        (json!({"k:[]": {}}), malformed("k:[]")),
        (json!({"k:{": {}}), malformed("k:{")),
        (json!({"v:": {}}), malformed("v:")),
        (json!({"v:nope": {}}), malformed("v:nope")),
        (json!({"i:one": {}}), malformed("i:one")),
    ] {
        assert_eq!(FieldSet::from_fields_v1(&document), Err(error), "{document}");
    }
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"f:a": deep});
    }
    assert_eq!(FieldSet::from_fields_v1(&deep), Err(FieldsV1Error::TooDeep));
}

#[test]
fn path_elements_have_an_order() {
    let ordered = [
        "f:a",
        "f:b",
        r#"k:{"a":1}"#,
        r#"k:{"a":2}"#,
        r#"k:{"a":10}"#,
        r#"k:{"a":10,"b":1}"#,
        r#"k:{"a":"1"}"#,
        r#"k:{"b":1}"#,
        "v:1",
        "v:1.5",
        "v:2",
        r#"v:"a""#,
        r#"v:"b""#,
        "v:false",
        "v:true",
        "v:[]",
        "v:{}",
        "v:null",
        "i:0",
        "i:2",
        "i:10",
    ];
    let elements: Vec<PathElement> = ordered.iter().map(|text| PathElement::parse(text).expect("an element")).collect();
    for (a, first) in elements.iter().enumerate() {
        for (b, second) in elements.iter().enumerate() {
            assert_eq!(first.cmp(second), a.cmp(&b), "{} {}", ordered[a], ordered[b]);
        }
        assert_eq!(first.serialize(), ordered[a]);
    }
    // Numbers are what they are worth, keys are in any order.
    assert_eq!(PathElement::parse("v:1"), PathElement::parse("v:1.0"));
    assert_eq!(PathElement::parse(r#"k:{"b":1,"a":2}"#), PathElement::parse(r#"k:{"a":2,"b":1}"#));
}

#[test]
fn paths_are_shown_as_in_messages() {
    for (document, shown) in [
        (json!({"f:spec": {"f:replicas": {}}}), ".spec.replicas"),
        (json!({"f:c": {"k:{\"name\":\"x\"}": {"f:image": {}}}}), ".c[name=\"x\"].image"),
        (json!({"f:p": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {}}}), ".p[port=80,protocol=\"TCP\"]"),
        (json!({"f:s": {"v:\"a\"": {}}}), ".s[=\"a\"]"),
        (json!({"f:l": {"i:3": {"f:a": {}}}}), ".l[3].a"),
    ] {
        let paths: Vec<String> = set(document).paths().iter().map(Path::to_string).collect();
        assert_eq!(paths, [shown]);
    }
}

/// `(a, b, union, intersection, difference, recursive difference)`.
#[test]
fn sets_are_combined() {
    let a = || json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:d": {}}}, "f:e": {}, "f:g": {"f:h": {}}});
    let table = [
        (json!({}), a(), json!({}), a(), a()),
        (a(), a(), a(), json!({}), json!({})),
        (
            json!({"f:e": {}, "f:x": {}}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:d": {}}}, "f:e": {}, "f:g": {"f:h": {}}, "f:x": {}}),
            json!({"f:e": {}}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:d": {}}}, "f:g": {"f:h": {}}}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:d": {}}}, "f:g": {"f:h": {}}}),
        ),
        // A field, and one in it, are two members.
        (
            json!({"f:a": {}, "f:g": {}}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:d": {}}}, "f:e": {}, "f:g": {".": {}, "f:h": {}}}),
            json!({"f:a": {}}),
            json!({"f:a": {"f:b": {}, "f:c": {"f:d": {}}}, "f:e": {}, "f:g": {"f:h": {}}}),
            json!({"f:e": {}}),
        ),
        (
            json!({"f:a": {"f:c": {"f:d": {}}}}),
            a(),
            json!({"f:a": {"f:c": {"f:d": {}}}}),
            json!({"f:a": {".": {}, "f:b": {}}, "f:e": {}, "f:g": {"f:h": {}}}),
            json!({"f:a": {".": {}, "f:b": {}}, "f:e": {}, "f:g": {"f:h": {}}}),
        ),
    ];
    for (b, union, intersection, difference, recursive) in table {
        let (a, b_set) = (set(a()), set(b.clone()));
        assert_eq!(a.union(&b_set), set(union), "union with {b}");
        assert_eq!(a.intersection(&b_set), set(intersection), "intersection with {b}");
        assert_eq!(a.difference(&b_set), set(difference), "difference to {b}");
        assert_eq!(a.recursive_difference(&b_set), set(recursive), "recursive difference to {b}");
    }
}

#[test]
fn leaves_are_the_fields_without_others_in_them() {
    let all = set(json!({"f:a": {".": {}, "f:b": {".": {}, "f:c": {}}, "f:d": {}}, "f:e": {}}));
    assert_eq!(all.leaves(), set(json!({"f:a": {"f:b": {"f:c": {}}, "f:d": {}}, "f:e": {}})));
}

#[test]
fn names_with_dots_make_paths() {
    assert_eq!(
        FieldSet::of_names(["status", "metadata.labels"]),
        set(json!({"f:metadata": {"f:labels": {}}, "f:status": {}}))
    );
    assert!(FieldSet::of_names(["a.b"]).has(&[PathElement::Field("a".to_owned()), PathElement::Field("b".to_owned())]));
    assert!(!FieldSet::of_names(["a.b"]).has(&[PathElement::Field("a".to_owned())]));
}
