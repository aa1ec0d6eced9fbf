//! The operations over typed objects, in tables.

use serde_json::{Value, json};

use super::{set, types::thing};
use crate::{
    managed_fields::{Duplicates, FieldSet, Type},
    schema::Schema,
    testing,
};

/// Calls with the custom type.
fn with_thing<T>(run: impl FnOnce(Type<'_>) -> T) -> T {
    let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
    run(Type::new(&schema, &object_meta))
}

fn spec_of(fields: &FieldSet) -> Value {
    fields.to_fields_v1()["f:spec"].clone()
}

#[test]
fn fields_are_leaves_and_items() {
    for (spec, fields) in [
        (json!({}), json!({})),
        (json!({"replicas": 1}), json!({"f:replicas": {}})),
        (json!({"replicas": null}), json!({"f:replicas": {}})),
        (json!({"labels": {}}), json!({"f:labels": {}})),
        (json!({"labels": {"a": "b"}}), json!({"f:labels": {"f:a": {}}})),
        (json!({"atomicMap": {"a": "b"}}), json!({"f:atomicMap": {}})),
        (json!({"plain": ["a", "b"]}), json!({"f:plain": {}})),
        (json!({"set": ["b", "a"], "ports": []}), json!({"f:set": {"v:\"a\"": {}, "v:\"b\"": {}}})),
        (
            json!({"ports": [{"port": 80, "opts": {"a": 1}}]}),
            json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:opts": {"f:a": {}}}}}),
        ),
        (json!({"free": {"a": {"b": [1]}, "c": 1}}), json!({"f:free": {"f:a": {".": {}, "f:b": {}}, "f:c": {}}})),
        (json!({"any": 5}), json!({"f:any": {}})),
        (json!({"any": {"a": {}}}), json!({"f:any": {"f:a": {}}})),
        (json!({"untypedIos": {"a": {}}}), json!({"f:untypedIos": {"f:a": {}}})),
        (json!({"nest": {"deep": {"x": "1"}}}), json!({"f:nest": {"f:deep": {"f:x": {}}}})),
        // Items that share a key are owned as one.
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]}),
            json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {}}}),
        ),
    ] {
        let actual = with_thing(|ty| ty.to_set(&json!({"spec": spec})));
        let expected = set(json!({"f:spec": fields}));
        // An empty struct is a field itself.
        assert_eq!(actual, expected, "{spec}: {}", spec_of(&actual));
    }
}

#[test]
fn values_that_do_not_fit_are_told_in_upstreams_words() {
    for (object, duplicates, message) in [
        (json!({"spec": {"replicas": 1}}), Duplicates::Refused, ""),
        (json!({"spec": null, "metadata": null}), Duplicates::Refused, ""),
        (json!({"spec": {"date": 5, "ios": "a"}}), Duplicates::Refused, ""),
        (json!({"spec": {"foo": 1}}), Duplicates::Refused, ".spec.foo: field not declared in schema"),
        (json!({"metadata": {"x": 1}}), Duplicates::Refused, ".metadata.x: field not declared in schema"),
        (json!({"spec": {"ios": {}}}), Duplicates::Refused, ".spec.ios: expected any scalar, got &{map[]}"),
        // In a definition int-or-string has no type, and only its validation refuses it.
        (json!({"spec": {"untypedIos": {}}}), Duplicates::Refused, ""),
        (
            json!({"spec": {"replicas": "1"}}),
            Duplicates::Refused,
            ".spec.replicas: expected numeric (int or float), got string",
        ),
        (
            json!({"spec": {"name": ["a", 1]}}),
            Duplicates::Refused,
            ".spec.name: expected string, got &value.valueUnstructured{Value:[]interface {}{\"a\", 1}}",
        ),
        (json!({"spec": {"set": {"a": 1}}}), Duplicates::Refused, ".spec.set: expected list, got &{map[a:1]}"),
        (json!({"spec": {"set": ["a", "a"]}}), Duplicates::Refused, ".spec.set: duplicate entries for key [=\"a\"]"),
        (json!({"spec": {"set": ["a", "a"]}}), Duplicates::Allowed, ""),
        (
            json!({"spec": {"set": [null], "plain": [5]}}),
            Duplicates::Refused,
            "errors:\n  .spec.plain[0]: expected string, got &value.valueUnstructured{Value:5}\n  .spec.set: element 0: associative list without keys has an element that's an explicit null",
        ),
    ] {
        let message_was =
            with_thing(|ty| ty.check(&object, duplicates)).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(message_was, message, "{object}");
    }
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"a": deep});
    }
    let deep = json!({"spec": {"any": deep}});
    assert!(with_thing(|ty| ty.check(&deep, Duplicates::Allowed)).is_err());
}

#[test]
fn what_differs_is_removed_modified_or_added() {
    let key = |port: i64| format!("k:{{\"port\":{port},\"protocol\":\"TCP\"}}");
    for (old, new, removed, modified, added) in [
        (json!({"replicas": 1}), json!({"replicas": 1}), json!({}), json!({}), json!({})),
        (json!({"replicas": 1}), json!({"replicas": 2}), json!({}), json!({"f:replicas": {}}), json!({})),
        (json!({"replicas": 1}), json!({"replicas": 1.0}), json!({}), json!({}), json!({})),
        (json!({}), json!({"labels": {"a": "b"}}), json!({}), json!({}), json!({"f:labels": {".": {}, "f:a": {}}})),
        (json!({"labels": {"a": "b"}}), json!({"labels": {}}), json!({"f:labels": {"f:a": {}}}), json!({}), json!({})),
        (json!({"labels": null}), json!({"labels": {}}), json!({}), json!({"f:labels": {}}), json!({})),
        (json!({"plain": ["a"]}), json!({"plain": ["a", "b"]}), json!({}), json!({"f:plain": {}}), json!({})),
        (
            json!({"set": ["a", "b"]}),
            json!({"set": ["b", "c"]}),
            json!({"f:set": {"v:\"a\"": {}}}),
            json!({}),
            json!({"f:set": {"v:\"c\"": {}}}),
        ),
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 2}]}),
            json!({"ports": [{"port": 3}, {"port": 1, "name": "b", "protocol": "TCP"}]}),
            json!({"f:ports": {key(2): {".": {}, "f:port": {}}}}),
            json!({"f:ports": {key(1): {"f:name": {}}}}),
            json!({"f:ports": {key(1): {"f:protocol": {}}, key(3): {".": {}, "f:port": {}}}}),
        ),
        // A value of another kind.
        (json!({"any": 1}), json!({"any": {"a": 1}}), json!({}), json!({"f:any": {}}), json!({"f:any": {"f:a": {}}})),
        // Items that share a key: one leaf.
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 1}]}),
            json!({"ports": [{"port": 1, "name": "b"}, {"port": 1}]}),
            json!({}),
            json!({"f:ports": {key(1): {}}}),
            json!({}),
        ),
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 1}]}),
            json!({"ports": [{"port": 1}]}),
            json!({"f:ports": {key(1): {}}}),
            json!({}),
            json!({"f:ports": {key(1): {".": {}, "f:port": {}}}}),
        ),
    ] {
        let comparison = with_thing(|ty| ty.compare(&json!({"spec": old}), &json!({"spec": new})));
        let actual = [comparison.removed, comparison.modified, comparison.added];
        let expected = [removed, modified, added].map(|fields| match &fields {
            Value::Object(none) if none.is_empty() => FieldSet::default(),
            _ => set(json!({"f:spec": fields})),
        });
        assert_eq!(actual, expected, "{old} {new}");
    }
}

#[test]
fn what_is_applied_is_merged() {
    for (live, applied, merged) in [
        (json!({"replicas": 1}), json!({}), json!({"replicas": 1})),
        (json!({"replicas": 1}), json!({"replicas": 2, "name": "a"}), json!({"replicas": 2, "name": "a"})),
        (
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"b": "3", "c": "4"}}),
            json!({"labels": {"a": "1", "b": "3", "c": "4"}}),
        ),
        (json!({"labels": {"a": "1"}}), json!({"labels": {}}), json!({"labels": {"a": "1"}})),
        (json!({"atomicMap": {"a": "1"}}), json!({"atomicMap": {"b": "2"}}), json!({"atomicMap": {"b": "2"}})),
        (json!({"plain": ["a", "b"]}), json!({"plain": ["c"]}), json!({"plain": ["c"]})),
        // Of shared items the applied order holds; others keep their place before the next shared one.
        (json!({"set": ["a", "b", "c"]}), json!({"set": ["c", "a"]}), json!({"set": ["b", "c", "a"]})),
        (json!({"set": ["a", "b", "c"]}), json!({"set": ["x", "b"]}), json!({"set": ["a", "x", "b", "c"]})),
        (json!({"set": ["a", "b", "c"]}), json!({"set": ["b"]}), json!({"set": ["a", "b", "c"]})),
        (json!({"set": ["a", "b", "c"]}), json!({"set": ["d"]}), json!({"set": ["a", "b", "c", "d"]})),
        (
            json!({"set": ["a", "b", "c", "d"]}),
            json!({"set": ["d", "e", "b"]}),
            json!({"set": ["a", "c", "d", "e", "b"]}),
        ),
        (
            json!({"ports": [{"port": 1, "protocol": "TCP", "name": "a"}, {"port": 2, "name": "b"}]}),
            json!({"ports": [{"port": 2, "opts": {"x": 1}}, {"port": 1, "name": "c"}]}),
            json!({"ports": [{"port": 2, "name": "b", "opts": {"x": 1}}, {"port": 1, "protocol": "TCP", "name": "c"}]}),
        ),
        // Items that share a key are replaced by the applied one.
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}, {"port": 2}]}),
            json!({"ports": [{"port": 1, "opts": {"x": 1}}]}),
            json!({"ports": [{"port": 1, "opts": {"x": 1}}, {"port": 2}]}),
        ),
        (json!({"any": {"a": 1}}), json!({"any": [1]}), json!({"any": [1]})),
        (json!({"any": [1]}), json!({"any": {"a": {"b": 1}}}), json!({"any": {"a": {"b": 1}}})),
    ] {
        let actual = with_thing(|ty| ty.merge(&json!({"spec": live}), &json!({"spec": applied})));
        assert_eq!(actual["spec"], merged, "{live} {applied}");
    }
}

#[test]
fn fields_are_removed_and_extracted() {
    let key = "k:{\"port\":1,\"protocol\":\"TCP\"}";
    let spec = || {
        json!({"labels": {"a": "1", "b": "2"}, "set": ["a", "b"], "ports": [{"port": 1, "name": "a"}, {"port": 2}],
               "plain": ["x"], "atomicMap": {"a": "1"}, "replicas": 1})
    };
    for (fields, gone, only) in [
        (json!({"f:labels": {"f:a": {}}}), json!({"labels": {"b": "2"}}), json!({"labels": {"a": "1"}})),
        (json!({"f:set": {"v:\"a\"": {}}}), json!({"set": ["b"]}), json!({"set": ["a"]})),
        (
            json!({"f:ports": {key: {"f:name": {}}}}),
            json!({"ports": [{"port": 1}, {"port": 2}]}),
            json!({"ports": [{"port": 1, "name": "a"}]}),
        ),
        (
            json!({"f:ports": {key: {".": {}, "f:name": {}}}}),
            json!({"ports": [{"port": 2}]}),
            json!({"ports": [{"port": 1, "name": "a"}]}),
        ),
        (json!({"f:plain": {}}), json!({"plain": "gone"}), json!({"plain": ["x"]})),
        (json!({"f:atomicMap": {}}), json!({"atomicMap": "gone"}), json!({"atomicMap": {"a": "1"}})),
    ] {
        let mut left = spec();
        for (field, value) in gone.as_object().expect("an object") {
            match value.as_str() {
                Some("gone") => drop(left.as_object_mut().expect("an object").remove(field)),
                _ => left[field] = value.clone(),
            }
        }
        let fields = set(json!({"f:spec": fields}));
        let (removed, extracted) = with_thing(|ty| {
            let object = json!({"spec": spec()});
            (ty.remove(&object, &fields), ty.extract(&object, &fields))
        });
        assert_eq!(removed["spec"], left, "without {}", spec_of(&fields));
        assert_eq!(extracted["spec"], only, "only {}", spec_of(&fields));
    }
}

#[test]
fn what_has_become_atomic_is_owned_as_a_whole() {
    for (before, after) in [
        (
            json!({"f:atomicMap": {"f:a": {}, "f:b": {}}, "f:plain": {"v:\"x\"": {}}}),
            json!({"f:atomicMap": {}, "f:plain": {}}),
        ),
        (json!({"f:labels": {}}), json!({"f:labels": {}})),
        (
            json!({"f:labels": {"f:a": {}}, "f:gone": {"f:x": {}}}),
            json!({"f:labels": {"f:a": {}}, "f:gone": {"f:x": {}}}),
        ),
    ] {
        let actual = with_thing(|ty| ty.reconcile(&set(json!({"f:spec": before}))));
        assert_eq!(spec_of(&actual), after);
    }
}

#[test]
fn fields_of_structs_are_removed_with_what_is_in_them() {
    let fields = set(
        json!({"f:spec": {"f:nest": {"f:deep": {"f:x": {}}}, "f:labels": {"f:a": {}}, "f:free": {"f:a": {"f:b": {}}}}}),
    );
    let named = with_thing(|ty| ty.with_named_fields(&fields));
    assert_eq!(
        named.to_fields_v1(),
        json!({"f:spec": {".": {}, "f:nest": {".": {}, "f:deep": {".": {}, "f:x": {}}}, "f:labels": {".": {}, "f:a": {}},
               "f:free": {".": {}, "f:a": {"f:b": {}}}}})
    );
}

#[test]
fn keys_of_items_have_defaults() {
    let of = |schema: &Schema, object: Value| {
        let object_meta = testing::schema("meta/v1.ObjectMeta");
        Type::new(schema, &object_meta).to_set(&object).to_fields_v1()
    };
    let pod = testing::schema("core/v1.Pod");
    assert_eq!(
        of(
            &pod,
            json!({"spec": {"imagePullSecrets": [{}], "containers": [{"image": "i", "ports": [{"containerPort": 80}]}]}})
        ),
        json!({"f:spec": {"f:imagePullSecrets": {"k:{\"name\":\"\"}": {}}, "f:containers": {"k:{\"name\":\"\"}": {".": {}, "f:image": {},
               "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}})
    );
}
