//! One document of version 2 out of those of several servers. Definitions of one name that differ get other names.
//!
//! Upstream: `k8s.io/kube-openapi/pkg/aggregator`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const GVK: &str = "x-kubernetes-group-version-kind";

/// What a document says of the paths with one of these prefixes, with the definitions that only these, or none, refer to
/// (`FilterSpecByPaths`). A document without paths stays as it is.
#[must_use]
pub fn filtered(document: &Value, prefixes: &[&str]) -> Value {
    filtered_by(document, |path| prefixes.iter().any(|prefix| path.starts_with(prefix)))
}

fn filtered_by(document: &Value, keeps: impl Fn(&str) -> bool) -> Value {
    let mut out = document.clone();
    let Some(paths) = out.get_mut("paths").and_then(Value::as_object_mut) else { return out };
    paths.retain(|path, _| keeps(path));
    let (before, after) = (used(document), used(&out));
    if let Some(definitions) = out.get_mut("definitions").and_then(Value::as_object_mut) {
        definitions.retain(|name, _| after.contains(name) || !before.contains(name));
    }
    out
}

/// The definitions that paths refer to, directly or through others.
fn used(document: &Value) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), Vec::new());
    for part in ["paths", "parameters", "responses"] {
        each_reference(&document[part], &mut |reference| {
            next.extend(reference.strip_prefix(DEFINITIONS).map(str::to_owned));
        });
    }
    while let Some(name) = next.pop() {
        if reached.contains(&name) {
            continue;
        }
        each_reference(&document["definitions"][&name], &mut |reference| {
            next.extend(reference.strip_prefix(DEFINITIONS).map(str::to_owned));
        });
        reached.insert(name);
    }
    reached
}

fn each_reference(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                see(reference);
            }
            fields.values().for_each(|value| each_reference(value, see));
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, see)),
        _ => {}
    }
}

/// Adds what `source` serves and `merged` does not: paths of both stay as they are in `merged`, definitions and parameters that
/// differ are renamed (`MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters`).
pub fn merge(merged: &mut Value, source: &Value) {
    let Some(paths) = source["paths"].as_object() else { return };
    let known = |path: &str| merged["paths"].get(path).is_some();
    let new: BTreeSet<&str> = paths.keys().map(String::as_str).filter(|path| !known(path)).collect();
    if new.is_empty() {
        return;
    }
    let mut source =
        if new.len() < paths.len() { filtered_by(source, |path| new.contains(path)) } else { source.clone() };
    for (part, prefix) in [("definitions", DEFINITIONS), ("parameters", PARAMETERS)] {
        let renames = renames(&merged[part], &source[part]);
        rename(&mut source, part, prefix, &renames);
    }
    for part in ["definitions", "parameters", "paths"] {
        if let Some(own) = source.get_mut(part).and_then(Value::as_object_mut).map(std::mem::take) {
            extend(merged, part, own);
        }
    }
}

/// Adds the parts of one kind that are new.
fn extend(document: &mut Value, part: &str, own: Map<String, Value>) {
    let Some(all) = document[part].as_object_mut() else {
        document[part] = Value::Object(own);
        return;
    };
    for (name, value) in own {
        match all.get_mut(&name) {
            Some(known) => add_kinds(known, &value),
            None => drop(all.insert(name, value)),
        }
    }
}

/// What of `source` is called otherwise in `merged`.
fn renames(merged: &Value, source: &Value) -> BTreeMap<String, String> {
    let mut renames = BTreeMap::new();
    let mut taken: BTreeSet<String> = merged.as_object().into_iter().flat_map(|all| all.keys().cloned()).collect();
    for (name, value) in source.as_object().into_iter().flatten() {
        let differs = |known: &str| merged.get(known).map(|known| !is_same(known, value));
        if differs(name) != Some(true) {
            continue;
        }
        let mut number = 2;
        let renamed = loop {
            let candidate = format!("{name}_v{number}");
            match differs(&candidate) {
                Some(false) => break candidate,
                None if !taken.contains(&candidate) && source.get(&candidate).is_none() => break candidate,
                _ => number += 1,
            }
        };
        taken.insert(renamed.clone());
        renames.insert(name.clone(), renamed);
    }
    renames
}

/// Whether two definitions differ in their kinds at most.
fn is_same(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return one == other };
    let without = |fields: &Map<String, Value>| fields.len() - usize::from(fields.contains_key(GVK));
    let rest = one.iter().filter(|(name, _)| *name != GVK);
    without(one) == without(other) && rest.into_iter().all(|(name, value)| other.get(name) == Some(value))
}

fn rename(document: &mut Value, part: &str, prefix: &str, renames: &BTreeMap<String, String>) {
    if renames.is_empty() {
        return;
    }
    refer(document, prefix, renames);
    if let Some(all) = document.get_mut(part).and_then(Value::as_object_mut) {
        let old = std::mem::take(all);
        *all = old.into_iter().map(|(name, value)| (renames.get(&name).cloned().unwrap_or(name), value)).collect();
    }
}

fn refer(value: &mut Value, prefix: &str, renames: &BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(renamed) = reference.strip_prefix(prefix).and_then(|name| renames.get(name))
            {
                *reference = format!("{prefix}{renamed}");
            }
            fields.values_mut().for_each(|value| refer(value, prefix, renames));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, prefix, renames)),
        _ => {}
    }
}

/// Adds the kinds of the same definition of another server.
fn add_kinds(known: &mut Value, other: &Value) {
    let Some(new) = other[GVK].as_array().filter(|_| known.is_object()) else { return };
    let name = |kind: &Value| {
        let text = |field: &str| kind[field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}.{}", text("group"), text("version"), text("kind"))
    };
    let mut all = known[GVK].as_array().cloned().unwrap_or_default();
    let before = all.len();
    for kind in new {
        if !all.iter().any(|known| name(known) == name(kind)) {
            all.push(kind.clone());
        }
    }
    if all.len() > before {
        all.sort_by_key(name);
        known[GVK] = Value::Array(all);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("{DEFINITIONS}{name}")})
    }

    fn path(definition: &str) -> Value {
        json!({"get": {"responses": {"200": {"schema": reference(definition)}}}})
    }

    #[test]
    fn what_only_other_paths_refer_to_goes() {
        let document = json!({
            "paths": {"/apis/a/v1/x": path("A"), "/apis/b/v1/x": path("B")},
            "definitions": {"A": {"properties": {"m": reference("Meta")}}, "B": {"properties": {"c": reference("C")}},
                "C": {}, "Meta": {}, "Unused": {}},
        });
        let kept = filtered(&document, &["/apis/a/v1/"]);
        assert_eq!(kept["paths"].as_object().unwrap().keys().collect::<Vec<_>>(), ["/apis/a/v1/x"]);
        let names: Vec<&String> = kept["definitions"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["A", "Meta", "Unused"]);
        assert_eq!(filtered(&json!({"swagger": "2.0"}), &["/"]), json!({"swagger": "2.0"}));
    }

    /// Upstream's tables of conflicts.
    #[test]
    fn definitions_that_differ_are_renamed() {
        let document = |paths: Value, definitions: Value| json!({"paths": paths, "definitions": definitions});
        let a = json!({"type": "object"});
        let b = json!({"type": "string"});
        let kind = |version: &str| json!([{"group": "g", "version": version, "kind": "K"}]);
        for (name, merged, source, wanted) in [
            (
                "the same",
                document(json!({"/a": path("T")}), json!({"T": a})),
                document(json!({"/b": path("T")}), json!({"T": a})),
                document(json!({"/a": path("T"), "/b": path("T")}), json!({"T": a})),
            ),
            (
                "another",
                document(json!({"/a": path("T")}), json!({"T": a})),
                document(json!({"/b": path("T")}), json!({"T": b})),
                document(json!({"/a": path("T"), "/b": path("T_v2")}), json!({"T": a, "T_v2": b})),
            ),
            (
                "renamed before",
                document(json!({"/a": path("T"), "/c": path("T_v2")}), json!({"T": a, "T_v2": b})),
                document(json!({"/b": path("T")}), json!({"T": b})),
                document(json!({"/a": path("T"), "/b": path("T_v2"), "/c": path("T_v2")}), json!({"T": a, "T_v2": b})),
            ),
            (
                "a name that the source has, too",
                document(json!({"/a": path("T")}), json!({"T": a})),
                document(json!({"/b": path("T"), "/c": path("T_v2")}), json!({"T": b, "T_v2": {}})),
                document(
                    json!({"/a": path("T"), "/b": path("T_v3"), "/c": path("T_v2")}),
                    json!({"T": a, "T_v2": {}, "T_v3": b}),
                ),
            ),
            (
                "a path of both",
                document(json!({"/a": path("T")}), json!({"T": a})),
                document(json!({"/a": path("U"), "/b": path("V")}), json!({"U": b, "V": b})),
                document(json!({"/a": path("T"), "/b": path("V")}), json!({"T": a, "V": b})),
            ),
            (
                "nothing new",
                document(json!({"/a": path("T")}), json!({"T": a})),
                document(json!({"/a": path("T")}), json!({"T": b})),
                document(json!({"/a": path("T")}), json!({"T": a})),
            ),
            (
                "kinds of both",
                document(json!({"/a": path("T")}), json!({"T": {"type": "object", GVK: kind("v2")}})),
                document(json!({"/b": path("T")}), json!({"T": {"type": "object", GVK: kind("v1")}})),
                document(
                    json!({"/a": path("T"), "/b": path("T")}),
                    json!({"T": {"type": "object", GVK: [kind("v1")[0], kind("v2")[0]]}}),
                ),
            ),
        ] {
            let mut merged = merged;
            merge(&mut merged, &source);
            assert_eq!(merged, wanted, "{name}");
        }
    }

    #[test]
    fn parameters_are_renamed_as_definitions_are() {
        let parameter = |name: &str| json!({"$ref": format!("{PARAMETERS}{name}")});
        let mut merged =
            json!({"paths": {"/a": {"parameters": [parameter("p")]}}, "parameters": {"p": {"in": "path"}}});
        let source = json!({"paths": {"/b": {"parameters": [parameter("p")]}}, "parameters": {"p": {"in": "query"}}});
        merge(&mut merged, &source);
        assert_eq!(merged["parameters"], json!({"p": {"in": "path"}, "p_v2": {"in": "query"}}));
        assert_eq!(merged["paths"]["/b"]["parameters"], json!([parameter("p_v2")]));
        assert_eq!(merged["paths"]["/a"]["parameters"], json!([parameter("p")]));
    }

    /// What a server sends is arbitrary.
    #[test]
    fn what_is_no_document_changes_nothing() {
        for source in [json!(null), json!([]), json!({"paths": 1}), json!({"paths": {}, "definitions": 2})] {
            let mut merged = json!({"paths": {"/a": {}}, "definitions": {"T": {}}});
            let before = merged.clone();
            merge(&mut merged, &source);
            assert_eq!(merged, before, "{source}");
            assert_eq!(filtered(&source, &["/"]).is_object(), source.is_object());
        }
        let mut merged = json!({"paths": {}});
        merge(&mut merged, &json!({"paths": {"/b": 1}, "definitions": [1]}));
        assert_eq!(merged["paths"], json!({"/b": 1}));
    }
}
