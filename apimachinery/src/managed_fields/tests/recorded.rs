//! What kube-apiserver 1.36.2 made of sequences of writes. Each step begins with what it had stored before.

use serde_json::{Value, json};

use super::types::thing;
use crate::{
    managed_fields::{ApplyError, FieldSet, OneVersion, Request, Type, apply, keep_times, update},
    schema::Schema,
    testing,
};

static RECORDED: &str = include_str!("recorded.json");

/// Fields that are reset on a path, as in the strategies of the recorded kinds.
fn reset(ty: &str, subresource: &str) -> FieldSet {
    match (ty, subresource) {
        ("core/v1.ConfigMap", _) => FieldSet::default(),
        ("Thing", "status") => FieldSet::of_names(["metadata", "spec"]),
        ("core/v1.Pod", "status") => {
            FieldSet::of_names(["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"])
        }
        ("apps/v1.Deployment", "status") => FieldSet::of_names(["spec", "metadata.labels"]),
        (_, "status") => FieldSet::of_names(["spec"]),
        _ => FieldSet::of_names(["status"]),
    }
}

/// The latest time of the managers of an object: that of the write, if it has one.
fn latest(object: &Value) -> String {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.filter_map(|entry| entry["time"].as_str()).max().unwrap_or("2026-01-01T00:00:00Z").to_owned()
}

struct Step<'a> {
    title: &'a str,
    ty: &'a str,
    number: usize,
    recorded: &'a Value,
}

impl Step<'_> {
    fn text(&self, field: &str) -> &str {
        self.recorded[field].as_str().unwrap_or("")
    }

    fn name(&self) -> String {
        format!("{} step {}: {} by {}", self.title, self.number, self.text("verb"), self.text("manager"))
    }

    /// Checks a step that begins with `live`, and returns what the server had then.
    fn run(&self, schema: &Schema, live: Value) -> Value {
        let object_meta = testing::schema("meta/v1.ObjectMeta");
        let reset = reset(self.ty, self.text("subresource"));
        let refused = self.recorded["code"].as_u64() >= Some(300);
        let expected = if refused { live.clone() } else { self.recorded["object"].clone() };
        let now = latest(&expected);
        let mut request = Request {
            ty: Type::new(schema, &object_meta),
            api_version: "",
            subresource: self.text("subresource"),
            reset: &reset,
            versions: &OneVersion,
            manager: self.text("manager"),
            now: &now,
        };
        let api_version = if refused { live["apiVersion"].clone() } else { expected["apiVersion"].clone() };
        request.api_version = api_version.as_str().unwrap_or("");
        if self.text("verb") == "apply" {
            let outcome = apply(&request, &live, &self.recorded["body"], self.recorded["force"] == true);
            // The strategy restores what the path does not write.
            let outcome = outcome.map(|object| request.ty.remove(&object, &reset));
            self.check_apply(&live, &expected, outcome);
        } else if !refused {
            let mut new = expected.clone();
            if self.text("verb") == "create" {
                // What admission adds after.
                for field in ["priority", "preemptionPolicy"] {
                    new["spec"].as_object_mut().and_then(|spec| spec.remove(field));
                }
            }
            // The request brings managed fields only where it sets them.
            match &self.recorded["requested"] {
                Value::Null => new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone(),
                requested => new["metadata"]["managedFields"] = requested.clone(),
            }
            update(&request, &live, &mut new);
            keep_times(&live, &mut new);
            assert_eq!(new["metadata"]["managedFields"], expected["metadata"]["managedFields"], "{}", self.name());
        }
        expected
    }

    fn check_apply(&self, live: &Value, expected: &Value, outcome: Result<Value, ApplyError>) {
        match outcome {
            Ok(mut object) => {
                // 422: refused by validation, which comes after.
                if self.recorded["code"] == 422 {
                    return;
                }
                assert!(self.recorded["code"].as_u64() < Some(300), "{}: {object}", self.name());
                keep_times(live, &mut object);
                assert_eq!(
                    object["metadata"]["managedFields"],
                    expected["metadata"]["managedFields"],
                    "{}",
                    self.name()
                );
                assert_contains(expected, &object, &self.name(), "");
            }
            Err(error) => {
                // Go iterates over maps in any order.
                assert_eq!(sorted(&error.to_string()), sorted(self.text("message")), "{}", self.name());
                if let ApplyError::Conflicts(conflicts) = error {
                    let mut causes: Vec<Value> = conflicts
                        .0
                        .iter()
                        .map(|conflict| {
                            json!({"reason": "FieldManagerConflict", "message": conflict.message(),
                                   "field": conflict.path.to_string()})
                        })
                        .collect();
                    // The server has its managers in no order.
                    let mut expected = self.recorded["causes"].as_array().expect("causes").clone();
                    for causes in [&mut causes, &mut expected] {
                        causes.sort_by_key(Value::to_string);
                    }
                    assert_eq!(causes, expected, "{}", self.name());
                }
            }
        }
    }
}

fn sorted(message: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = message.lines().collect();
    lines.sort_unstable();
    lines
}

/// All of `part` is in `whole`, which has defaults and what the server writes besides. Null is nothing.
fn assert_contains(whole: &Value, part: &Value, name: &str, at: &str) {
    match (whole, part) {
        (_, Value::Null) => {}
        (Value::Object(whole), Value::Object(part)) => {
            for (field, part) in part {
                if !matches!(field.as_str(), "managedFields" | "uid" | "generation") {
                    assert_contains(whole.get(field).unwrap_or(&Value::Null), part, name, &format!("{at}/{field}"));
                }
            }
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            for (index, (whole, part)) in whole.iter().zip(part).enumerate() {
                assert_contains(whole, part, name, &format!("{at}/{index}"));
            }
        }
        // Quantities are written in their canonical form after.
        (Value::String(whole), Value::String(part)) if at.contains("/limits/") => assert!(whole.len() <= part.len()),
        // What is empty is dropped.
        (Value::Null, Value::Bool(false)) => {}
        (Value::Null, Value::Object(part)) if part.is_empty() => {}
        (Value::Null, Value::Array(part)) if part.is_empty() => {}
        _ => assert_eq!(whole, part, "{name} at {at}"),
    }
}

#[test]
fn writes_are_recorded_as_by_kube_apiserver() {
    let chains: Value = serde_json::from_str(RECORDED).expect("JSON");
    let mut steps = 0;
    for chain in chains.as_array().expect("a list") {
        let (title, ty) = (chain["title"].as_str().expect("a title"), chain["type"].as_str().expect("a type"));
        let schema = if ty == "Thing" { thing() } else { testing::schema(ty).as_ref().clone() };
        let mut live = json!({});
        for (number, recorded) in chain["steps"].as_array().into_iter().flatten().enumerate() {
            if recorded["subresource"] == "scale" {
                live = recorded["object"].clone();
            } else {
                live = Step { title, ty, number, recorded }.run(&schema, live);
            }
            // As stored: the server's objects have a uid, which is not recorded.
            live["metadata"]["uid"] = json!("u");
            steps += 1;
        }
    }
    assert!(steps > 100, "{steps}");
}
