//! Definitions of custom resources, and writes to their objects in several versions by several managers.

mod refused;

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    api_server::{JSON, Step},
    scenario::{APPLY, MERGE, step},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long the real server may serve a definition as it was before a change.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// When a step has its effect.
pub(crate) enum Settles {
    Now,
    /// After [`PAUSE`].
    Later,
    /// Once the answer has this value at this pointer: the step is repeated until then.
    At(&'static str, Value),
}

type Steps = Vec<(Step, Settles)>;

pub(crate) fn steps() -> Steps {
    [refused::steps(), selected(), versions(), owners(), storage(), removed(), webhooks()]
        .into_iter()
        .flatten()
        .collect()
}

fn schema(more: Value) -> Value {
    let mut fields = json!({"size": {"type": "integer"}, "colour": {"type": "string"}});
    for (name, field) in more.as_object().into_iter().flatten() {
        fields[name] = field.clone();
    }
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }})
}

/// A version; `more` replaces its fields.
fn version(name: &str, storage: bool, more: Value) -> Value {
    let mut version =
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema(json!({}))}});
    for (name, field) in more.as_object().into_iter().flatten() {
        version[name] = field.clone();
    }
    version
}

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({"metadata": {"name": format!("{plural}.diff.example")},
        "spec": {"group": "diff.example", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": versions}})
}

fn called(name: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    step(&format!("definition: {name}"), "admin", method, path, kind, body)
}

/// A new definition, and when it is established.
fn establish(plural: &str, object: Value) -> Steps {
    let one = format!("{DEFINITIONS}/{plural}.diff.example");
    let is_established = Settles::At("/body/status/conditions/1/status", json!("True"));
    vec![
        (called(plural, "POST", DEFINITIONS, JSON, object), Settles::Now),
        (called(&format!("{plural} is established"), "GET", &one, JSON, Value::Null), is_established),
        (called(&format!("{plural} settles"), "GET", &one, JSON, Value::Null), Settles::Later),
    ]
}

fn objects(version: &str, plural: &str) -> String {
    format!("/apis/diff.example/{version}/namespaces/default/{plural}")
}

fn object(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("diff.example/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Field selectors.
fn selected() -> Steps {
    let fields = json!([{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.size"}, {"jsonPath": ".spec.flag"}]);
    let one = schema(json!({"flag": {"type": "boolean"}}));
    let mut steps = establish(
        "picks",
        definition(
            "picks",
            "Pick",
            json!([version("v1", true, json!({"selectableFields": fields, "schema": {"openAPIV3Schema": one}}))]),
        ),
    );
    let all = objects("v1", "picks");
    for (name, spec) in [
        ("a", json!({"colour": "red", "size": 80, "flag": true})),
        ("b", json!({"colour": "blue"})),
        ("c", json!({"colour": "red", "flag": false})),
    ] {
        steps.push((
            called(&format!("pick {name}"), "POST", &all, JSON, object("v1", "Pick", name, spec)),
            Settles::Now,
        ));
    }
    for query in [
        "spec.colour%3Dred",
        "spec.colour!%3Dred",
        "spec.colour%3D%3Dred,spec.size%3D80",
        "spec.flag%3Dtrue",
        "spec.flag%3D",
        "spec.size%3D",
        "metadata.name%3Db",
        "metadata.uid%3Dx",
        "spec.none%3Dx",
        "spec.colour",
        "spec.colour%20in%20(red)",
        "metadata.namespace%3Ddefault,spec.colour%3Dblue",
    ] {
        let path = format!("{all}?fieldSelector={query}");
        steps.push((called(&format!("list of {query}"), "GET", &path, JSON, Value::Null), Settles::Now));
    }
    let more = [
        ("watch of no field", "GET", format!("{all}?watch=1&timeoutSeconds=1&fieldSelector=spec.none%3Dx")),
        ("deletion of no field", "DELETE", format!("{all}?fieldSelector=spec.none%3Dx")),
        ("deletion of some", "DELETE", format!("{all}?fieldSelector=spec.colour%3Dred")),
        ("what is left", "GET", all),
    ];
    steps.extend(
        more.into_iter().map(|(name, method, path)| (called(name, method, &path, JSON, Value::Null), Settles::Now)),
    );
    let served = format!("{DEFINITIONS}/picks.diff.example");
    steps.push((called("the definition", "GET", &served, JSON, Value::Null), Settles::Now));
    steps
}

/// Two versions with a field of each, and a status.
fn two(plural: &str, kind: &str) -> Value {
    let of = |own: &str, default: &str| {
        let schema = schema(json!({own: {"type": "string", "default": default}}));
        json!({"subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}})
    };
    definition(plural, kind, json!([version("v1", true, of("old", "o")), version("v2", false, of("new", "n"))]))
}

/// What each version shows of an object.
fn versions() -> Steps {
    let mut steps = establish("vers", two("vers", "Ver"));
    let (first, second) = (objects("v1", "vers"), objects("v2", "vers"));
    let a = object("v1", "Ver", "a", json!({"size": 1, "old": "x", "new": "y"}));
    let b = object("v2", "Ver", "b", json!({"size": 1, "new": "z"}));
    for (name, method, path, kind, body) in [
        ("in the first version", "POST", first.clone(), JSON, a),
        ("read in the second", "GET", format!("{second}/a"), JSON, Value::Null),
        ("in the second version", "POST", second.clone(), JSON, b.clone()),
        ("tried in the second version", "POST", format!("{second}?dryRun=All"), JSON, {
            let mut b = b;
            b["metadata"]["name"] = json!("c");
            b
        }),
        ("read in the first", "GET", format!("{first}/b"), JSON, Value::Null),
        ("list of the first", "GET", first.clone(), JSON, Value::Null),
        ("list of the second", "GET", second.clone(), JSON, Value::Null),
        ("page of the second", "GET", format!("{second}?limit=1"), JSON, Value::Null),
        ("patched in the second", "PATCH", format!("{second}/a"), MERGE, json!({"spec": {"new": "p"}})),
        (
            "applied in the second",
            "PATCH",
            format!("{second}/b?fieldManager=m&force=true"),
            APPLY,
            object("v2", "Ver", "b", json!({"new": "q"})),
        ),
        (
            "applied in the first",
            "PATCH",
            format!("{first}/b?fieldManager=m"),
            APPLY,
            object("v1", "Ver", "b", json!({"colour": "q"})),
        ),
        ("deleted in the second", "DELETE", format!("{second}/b"), JSON, Value::Null),
        ("no such version", "GET", format!("{}/a", objects("v3", "vers")), JSON, Value::Null),
    ] {
        steps.push((called(name, method, &path, kind, body), Settles::Now));
    }
    steps
}

fn entry(manager: &str, version: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields})
}

/// Owners in several versions that agree, and entries that clients send.
fn owners() -> Steps {
    let status = json!({"subresources": {"status": {}}});
    let unserved = json!({"served": false});
    let mut steps = establish(
        "owns",
        definition(
            "owns",
            "Own",
            json!([version("v1", true, status.clone()), version("v2", false, status), version("v3", false, unserved)]),
        ),
    );
    let (first, second) = (objects("v1", "owns"), objects("v2", "owns"));
    let apply = |manager: &str, version: &str, spec: Value, force: &str| {
        let path = format!("{}/a?fieldManager={manager}{force}", objects(version, "owns"));
        (
            called(
                &format!("{manager} applies {spec} in {version}"),
                "PATCH",
                &path,
                APPLY,
                object(version, "Own", "a", spec),
            ),
            Settles::Now,
        )
    };
    let merge = |manager: &str, version: &str, patch: Value| {
        let path = format!("{}/a?fieldManager={manager}", objects(version, "owns"));
        (called(&format!("{manager} merges {patch} in {version}"), "PATCH", &path, MERGE, patch), Settles::Now)
    };
    let mut with_status = object("v2", "Own", "a", json!({"colour": "none"}));
    with_status["status"] = json!({"phase": "x"});
    with_status["metadata"]["labels"] = json!({"l": "m"});
    let put = format!("{first}/a");
    let size = |version: &str| entry("e", &format!("diff.example/{version}"), json!({"f:spec": {"f:size": {}}}));
    let managed = |entries: Value| json!({"metadata": {"managedFields": entries}});
    steps.extend([
        (
            called(
                "owned in v1",
                "POST",
                &format!("{first}?fieldManager=a"),
                JSON,
                object("v1", "Own", "a", json!({"size": 1, "colour": "red"})),
            ),
            Settles::Now,
        ),
        apply("two", "v2", json!({"colour": "green"}), ""),
        apply("two", "v2", json!({"colour": "green"}), "&force=true"),
        apply("two", "v1", json!({"size": 1}), ""),
        merge("upd", "v2", json!({"spec": {"colour": "pink"}})),
        merge("upd", "v1", json!({"spec": {"colour": "blue"}})),
        (
            called(
                "a status is applied",
                "PATCH",
                &format!("{second}/a/status?fieldManager=st"),
                APPLY,
                with_status.clone(),
            ),
            Settles::Now,
        ),
        (
            called(
                "a status on the object is applied",
                "PATCH",
                &format!("{second}/a?fieldManager=so"),
                APPLY,
                with_status,
            ),
            Settles::Now,
        ),
        apply("k", "v2", json!({"colour": "blue"}), ""),
        merge("n", "v2", json!({})),
        merge("s", "v1", managed(json!([size("v1"), size("v3")]))),
        merge("s", "v1", json!({"spec": {"colour": "c1"}})),
        apply("t", "v1", json!({"size": 9}), ""),
        apply("t", "v1", json!({"size": 9}), "&force=true"),
        merge("s", "v1", managed(json!([size("v1"), size("v9")]))),
        apply("t", "v1", json!({"size": 10}), ""),
        merge("s", "v1", managed(json!([]))),
        merge("s", "v1", managed(json!([null]))),
        (
            called(
                "a status is put",
                "PUT",
                &format!("{put}/status?fieldManager=sp"),
                JSON,
                json!(format!("${{{put}}}")),
            ),
            Settles::Now,
        ),
    ]);
    steps
}

/// Another storage version.
fn storage() -> Steps {
    let one = format!("{DEFINITIONS}/vers.diff.example");
    let (first, second) = (objects("v1", "vers"), objects("v2", "vers"));
    let flags = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let patch = "application/json-patch+json";
    let status = |name: &str, stored: Value| {
        (
            called(name, "PATCH", &format!("{one}/status"), MERGE, json!({"status": {"storedVersions": stored}})),
            Settles::Now,
        )
    };
    let read = |name: &str, path: String| (called(name, "GET", &path, JSON, Value::Null), Settles::Now);
    vec![
        (called("another storage version", "PATCH", &one, patch, flags), Settles::Later),
        read("stored before, in the first", format!("{first}/a")),
        read("stored before, in the second", format!("{second}/a")),
        (called("written again", "PATCH", &format!("{first}/a?fieldManager=again"), MERGE, json!({})), Settles::Now),
        read("written again, in the first", format!("{first}/a")),
        read("written again, in the second", format!("{second}/a")),
        status("stored versions without the storage version", json!(["v1"])),
        status("no stored versions", json!([])),
        status("stored versions that there are not", json!(["v2", "v3"])),
        (
            called("a change with them", "PATCH", &one, MERGE, json!({"spec": {"names": {"shortNames": ["vv"]}}})),
            Settles::Now,
        ),
        status("stored versions again", json!(["v1", "v2"])),
        (
            called(
                "a stored version is removed",
                "PATCH",
                &one,
                patch,
                json!([{"op": "remove", "path": "/spec/versions/0"}]),
            ),
            Settles::Now,
        ),
        status("stored versions are pruned", json!(["v2"])),
        (
            called("a version is removed", "PATCH", &one, patch, json!([{"op": "remove", "path": "/spec/versions/0"}])),
            Settles::Later,
        ),
        read("in the version that is left", format!("{second}/a")),
        read("in the version that is gone", format!("{first}/a")),
        (
            called(
                "a change in the version that is left",
                "PATCH",
                &format!("{second}/a?fieldManager=left"),
                MERGE,
                json!({"spec": {"colour": "black"}}),
            ),
            Settles::Now,
        ),
    ]
}

/// A version that goes while managers own fields in it, and while objects are stored in it.
fn removed() -> Steps {
    let mut steps = establish(
        "rems",
        definition("rems", "Rem", json!([version("v1", true, json!({})), version("v2", false, json!({}))])),
    );
    let one = format!("{DEFINITIONS}/rems.diff.example");
    let (first, second) = (objects("v1", "rems"), objects("v2", "rems"));
    for name in ["a", "b"] {
        let (made, colour) =
            (object("v1", "Rem", name, json!({"size": 1})), object("v2", "Rem", name, json!({"colour": "x"})));
        steps.push((
            called(&format!("rem {name}"), "POST", &format!("{first}?fieldManager=a"), JSON, made),
            Settles::Now,
        ));
        steps.push((
            called(&format!("rem {name} in v2"), "PATCH", &format!("{second}/{name}?fieldManager=two"), APPLY, colour),
            Settles::Now,
        ));
    }
    let patch = "application/json-patch+json";
    let applied = object("v1", "Rem", "a", json!({"size": 9}));
    let read = |name: &str, path: String| (called(name, "GET", &path, JSON, Value::Null), Settles::Now);
    let both = json!([version("v1", false, json!({})), version("v2", true, json!({}))]);
    let last = json!([version("v2", true, json!({}))]);
    steps.extend([
        (
            called(
                "the second version goes",
                "PATCH",
                &one,
                patch,
                json!([{"op": "remove", "path": "/spec/versions/1"}]),
            ),
            Settles::Later,
        ),
        read("an object with an owner in it", format!("{first}/a")),
        (
            called(
                "its object is applied to",
                "PATCH",
                &format!("{first}/a?fieldManager=ap&force=true"),
                APPLY,
                applied,
            ),
            Settles::Now,
        ),
        (
            called(
                "its object is changed",
                "PATCH",
                &format!("{first}/a?fieldManager=u"),
                MERGE,
                json!({"spec": {"size": 3}}),
            ),
            Settles::Now,
        ),
        (
            called("its object is not changed", "PATCH", &format!("{first}/b?fieldManager=u"), MERGE, json!({})),
            Settles::Now,
        ),
        (called("it is stored", "PATCH", &one, MERGE, json!({"spec": {"versions": both}})), Settles::Later),
        (
            called(
                "nothing else is said to be stored",
                "PATCH",
                &format!("{one}/status"),
                MERGE,
                json!({"status": {"storedVersions": ["v2"]}}),
            ),
            Settles::Now,
        ),
        (called("the first version goes", "PATCH", &one, MERGE, json!({"spec": {"versions": last}})), Settles::Later),
        read("an object that is stored in it", format!("{second}/a")),
        (
            called(
                "the deletion of an object that is stored in it",
                "DELETE",
                &format!("{second}/a"),
                JSON,
                Value::Null,
            ),
            Settles::Now,
        ),
    ]);
    steps
}

/// A conversion by a webhook that nobody can call.
fn webhooks() -> Steps {
    let mut hooks =
        definition("hooks", "Hook", json!([version("v1", true, json!({})), version("v2", false, json!({}))]));
    hooks["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]}});
    let mut steps = establish("hooks", hooks);
    let (first, second) = (objects("v1", "hooks"), objects("v2", "hooks"));
    let put = {
        let mut put = object("v2", "Hook", "a", json!({"size": 4}));
        put["metadata"]["resourceVersion"] = json!("1");
        put
    };
    for (name, method, path, kind, body) in [
        ("list of nothing", "GET", second.clone(), JSON, Value::Null),
        ("hook", "POST", first.clone(), JSON, object("v1", "Hook", "a", json!({"size": 1}))),
        ("hook in its version", "GET", format!("{first}/a"), JSON, Value::Null),
        ("hooks in their version", "GET", first.clone(), JSON, Value::Null),
        ("hook is changed", "PATCH", format!("{first}/a"), MERGE, json!({"spec": {"size": 2}})),
        ("hook read", "GET", format!("{second}/a"), JSON, Value::Null),
        ("hook listed", "GET", second.clone(), JSON, Value::Null),
        ("hook in a page", "GET", format!("{second}?limit=1"), JSON, Value::Null),
        ("hook made", "POST", second.clone(), JSON, object("v2", "Hook", "b", json!({"size": 1}))),
        ("hook patched", "PATCH", format!("{second}/a"), MERGE, json!({"spec": {"size": 3}})),
        (
            "hook applied",
            "PATCH",
            format!("{second}/a?fieldManager=x"),
            APPLY,
            object("v2", "Hook", "a", json!({"size": 4})),
        ),
        (
            "hook made by an apply",
            "PATCH",
            format!("{second}/n?fieldManager=x"),
            APPLY,
            object("v2", "Hook", "n", json!({"size": 4})),
        ),
        ("hook put", "PUT", format!("{second}/a"), JSON, put),
        ("hook deleted", "DELETE", format!("{second}/a"), JSON, Value::Null),
        ("hooks deleted", "DELETE", second.clone(), JSON, Value::Null),
        ("no such hook", "GET", format!("{second}/none"), JSON, Value::Null),
        ("hook deleted in its version", "DELETE", format!("{first}/a"), JSON, Value::Null),
        ("hooks that are gone", "GET", second, JSON, Value::Null),
    ] {
        steps.push((called(name, method, &path, kind, body), Settles::Now));
    }
    steps
}
