//! Managers in several versions of a resource.

use serde_json::{Value, json};

use super::types::{number, object, text};
use crate::{
    managed_fields::{ApplyError, ConvertError, FieldSet, Request, Type, Versions, apply, update},
    schema::Schema,
    testing,
};

/// `v1` and `v2` agree but for a field of each; `v3` cannot be converted to, and there is no other.
struct Three {
    v1: Schema,
    v2: Schema,
    object_meta: Schema,
}

impl Three {
    fn new() -> Self {
        let of = |own: &str| object([("spec", object([("size", number()), ("colour", text()), (own, text())]))]);
        let embedded = |schema| Schema { embedded_resource: true, ..schema };
        Self {
            v1: embedded(of("old")),
            v2: embedded(of("new")),
            object_meta: Schema::clone(&testing::schema("meta/v1.ObjectMeta")),
        }
    }

    fn request<'a>(&'a self, api_version: &'a str, manager: &'a str, reset: &'a FieldSet) -> Request<'a> {
        Request {
            ty: self.type_of(api_version).expect("a version"),
            api_version,
            subresource: "",
            reset,
            versions: self,
            manager,
            now: "2026-01-01T00:00:00Z",
        }
    }
}

impl Versions for Three {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        let schema = match api_version {
            "v1" => &self.v1,
            "v2" => &self.v2,
            _ => return None,
        };
        Some(Type::new(schema, &self.object_meta))
    }

    fn convert(&self, object: &Value, _: &str, to: &str) -> Result<Value, ConvertError> {
        match to {
            "v3" => Err(ConvertError::Failed("no way to v3".to_owned())),
            "v1" | "v2" => {
                let mut object = object.clone();
                object["apiVersion"] = json!(to);
                Ok(object)
            }
            _ => Err(ConvertError::NoVersion),
        }
    }
}

fn owned(manager: &str, operation: &str, api_version: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": api_version, "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": fields}})
}

fn thing(api_version: &str, spec: Value, managers: Value) -> Value {
    let metadata = json!({"name": "t", "uid": "u", "managedFields": managers});
    json!({"apiVersion": api_version, "kind": "Thing", "metadata": metadata, "spec": spec})
}

fn applied(api_version: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
}

/// Manager, version and fields of the spec of each entry.
fn owners(object: &Value) -> Vec<(String, String, Value)> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or("").to_owned();
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let row = |e: &Value| (text(e, "manager"), text(e, "apiVersion"), e["fieldsV1"]["f:spec"].clone());
    entries.iter().map(row).collect()
}

fn row(manager: &str, api_version: &str, fields: Value) -> (String, String, Value) {
    (manager.to_owned(), api_version.to_owned(), fields)
}

#[test]
fn conflicts_are_found_across_versions() {
    let (versions, reset) = (Three::new(), FieldSet::default());
    let live = thing(
        "v2",
        json!({"size": 1, "colour": "red"}),
        json!([owned("a", "Update", "v1", json!({"f:size": {}, "f:colour": {}}))]),
    );
    let request = versions.request("v2", "b", &reset);
    let wanted = applied("v2", json!({"colour": "blue"}));
    let Err(ApplyError::Conflicts(conflicts)) = apply(&request, &live, &wanted, false) else { panic!("no conflict") };
    assert_eq!(conflicts.to_string(), "Apply failed with 1 conflict: conflict with \"a\" using v1: .spec.colour");
    let forced = apply(&request, &live, &wanted, true).expect("an apply by force");
    let expected = [row("b", "v2", json!({"f:colour": {}})), row("a", "v1", json!({"f:size": {}}))];
    assert_eq!(owners(&forced), expected);
    // What the manager applied in one version it gives up in the other.
    let request = versions.request("v1", "b", &reset);
    let less = apply(&request, &forced, &applied("v1", json!({"size": 1})), false).expect("an apply");
    assert_eq!(less["spec"], json!({"size": 1}));
    let expected = [row("b", "v1", json!({"f:size": {}})), row("a", "v1", json!({"f:size": {}}))];
    assert_eq!(owners(&less), expected);
}

#[test]
fn updates_take_fields_across_versions() {
    let (versions, reset) = (Three::new(), FieldSet::default());
    let managers = json!([
        owned("a", "Apply", "v1", json!({"f:colour": {}})),
        owned("gone", "Update", "v9", json!({"f:size": {}})),
        owned("b", "Update", "v2", json!({"f:size": {}})),
    ]);
    let live = thing("v2", json!({"size": 1, "colour": "red"}), managers.clone());
    let mut new = thing("v2", json!({"size": 1, "colour": "blue"}), managers);
    update(&versions.request("v2", "c", &reset), &live, &mut new);
    // Who owned fields of a version that there is not is gone.
    assert_eq!(owners(&new), [row("b", "v2", json!({"f:size": {}})), row("c", "v2", json!({"f:colour": {}}))]);
}

/// As upstream: an object that does not fit the version of a manager has no owners after an update, and is not applied to.
#[test]
fn an_object_that_cannot_be_converted_loses_its_owners() {
    let (versions, reset) = (Three::new(), FieldSet::default());
    for (api_version, spec, why) in
        [("v1", json!({"new": "n"}), ".spec.new: field not declared in schema"), ("v3", json!({}), "no way to v3")]
    {
        let managers = json!([owned("a", "Update", api_version, json!({"f:size": {}}))]);
        let live = thing("v2", spec.clone(), managers.clone());
        // Also when nothing else changes.
        for colour in [json!("red"), Value::Null] {
            let mut new = thing("v2", spec.clone(), managers.clone());
            if !colour.is_null() {
                new["spec"]["colour"] = colour;
            }
            update(&versions.request("v2", "b", &reset), &live, &mut new);
            assert!(new["metadata"].get("managedFields").is_none(), "{new}");
        }
        let refused = apply(&versions.request("v2", "b", &reset), &live, &applied("v2", json!({"colour": "x"})), true);
        assert_eq!(refused, Err(ApplyError::Conversion(why.to_owned())));
    }
    let managers = json!([owned("a", "Update", "v1", json!({"f:size": {}}))]);
    let live = thing("v2", json!({"size": 1}), managers);
    let refused = apply(&versions.request("v2", "b", &reset), &live, &applied("v2", json!({"new": "x"})), true);
    let why = "failed to convert new object: .spec.new: field not declared in schema";
    assert_eq!(refused, Err(ApplyError::Conversion(why.to_owned())));
}
