use std::sync::LazyLock;

use serde_json::{Map, json};

use crate::apiserver::{
    Api,
    tests::{
        Reply, call,
        templates::{collection, name_of, object},
        with_namespace,
    },
};

use super::{
    recorded_rows::{with, written},
    *,
};
use crate::{
    control_plane::instance::Instance,
    store::{Expected, Key, Write},
};

/// What upstream refuses: `apiVersion`, kind, a pointer into the sample of the kind, what stands there instead (`-` for
/// nothing), and the errors of its fields. Recorded from kube-apiserver 1.36.
static REFUSALS: LazyLock<String> = LazyLock::new(|| table("refusals"));

/// What upstream refuses of a change: `apiVersion`, kind, the subresource, a pointer into the stored object, what stands
/// there instead, and the errors of its fields. Recorded from kube-apiserver 1.36.
static CHANGES: LazyLock<String> = LazyLock::new(|| table("changes"));

/// The version of a row.
pub(super) fn served(api: &Api, api_version: &str, kind: &str) -> Arc<Version> {
    let catalog = api.catalogs().current();
    let is = |version: &&Arc<Version>| version.gvk.kind == kind && version.gvk.api_version() == api_version;
    Arc::clone(catalog.all().find(is).unwrap_or_else(|| panic!("{api_version} {kind} is not served")))
}

fn without_uids(text: &str) -> String {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let is_uid = |part: &[u8]| {
        part.iter()
            .enumerate()
            .all(|(at, byte)| if DASHES.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() })
    };
    let found = text.as_bytes().windows(36).position(is_uid);
    found.map_or(text.to_owned(), |at| format!("{}UID{}", &text[..at], without_uids(&text[at + 36..])))
}

/// A text of an error without what is by chance, and without a value that upstream writes as Go's internal type.
fn comparable(text: &str, internal: bool) -> String {
    let text = without_uids(text);
    let value = text.find(" value: ").map(|at| at + " value: ".len());
    let Some(at) = value.filter(|at| internal && text[*at..].starts_with(['{', '['])) else { return text };
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
    if values.next().is_none_or(|value| value.is_err()) {
        return text;
    }
    format!("{}…{}", &text[..at], &text[at + values.byte_offset()..])
}

/// Whether a text has what a server writes of its own: times, and the fields that a client manages.
fn is_managed(text: &str) -> bool {
    text.contains("managedFields")
}

/// Whether a text has a value of Go's internal types: their fields begin with a capital.
fn is_internal(text: &str) -> bool {
    text.match_indices("{\"").any(|(at, _)| text[at + 2..].starts_with(|c: char| c.is_ascii_uppercase()))
}

/// What only a node may write, which is no matter here.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Changes an object in the store, past what the API would refuse.
async fn write_past(api: &Instance, plural: &str, stored: &Value, change: impl FnOnce(&mut Value)) {
    let text = |field: &str| stored["metadata"][field].as_str().unwrap_or("").to_owned();
    let key = Key { namespace: text("namespace"), name: text("name") };
    let catalog = api.catalogs().current();
    let resource = catalog.all().find(|version| version.plural == plural).and_then(|version| version.id()).unwrap();
    let expected = Expected::Revision(api.store().get(resource, &key).unwrap().revision);
    let mut value = stored.clone();
    change(&mut value);
    let (value, guards, companions) = (Some(value), Vec::new(), Vec::new());
    api.store().write(Write { resource, key, expected, value, guards, companions }).await.unwrap();
}

/// The answer to a change of an object that is stored at a path, with a status if there is one: values by pointers (`-` for
/// nothing), of which nothing is kept. Which fields of a spec differ is told in other words here, and left out.
pub(super) async fn changed(
    api: &Instance,
    [path, name, subresource]: [&str; 3],
    object: Value,
    status: &Map<String, Value>,
    changes: Map<String, Value>,
) -> Reply {
    let mut object = object;
    let mirror = object["metadata"]["annotations"].as_object_mut().and_then(|all| all.remove(MIRROR));
    let mut stored = call(api, "POST", path, object).await;
    assert_eq!(stored.code, 201, "{path} {name}: {}", stored.body);
    let one = format!("{path}/{name}");
    if let Some(mirror) = mirror {
        write_past(api, "pods", &stored.body, |pod| pod["metadata"]["annotations"][MIRROR] = mirror).await;
        stored = call(api, "GET", &one, Value::Null).await;
    }
    if !status.is_empty() {
        if stored.body["status"].is_null() {
            stored.body["status"] = json!({});
        }
        stored.body["status"].as_object_mut().unwrap().extend(status.clone());
        stored = call(api, "PUT", &format!("{one}/status"), stored.body).await;
        assert_eq!(stored.code, 200, "{one}: {}", stored.body);
    }
    let mut wanted = stored.body;
    for (pointer, value) in changes {
        let value = if value == json!("-") { "-".to_owned() } else { value.to_string() };
        wanted = with(wanted, &pointer, &value);
    }
    let slash = if subresource.is_empty() { "" } else { "/" };
    let mut answer = call(api, "PUT", &format!("{one}{slash}{subresource}?dryRun=All"), wanted).await;
    for cause in answer.body["details"]["causes"].as_array_mut().into_iter().flatten() {
        if let Some((told, _)) = cause["message"].as_str().and_then(|told| told.split_once("\nchanged: ")) {
            cause["message"] = json!(told);
        }
    }
    answer
}

/// The errors of fields in an answer, if they are not those that upstream tells.
pub(super) fn compare(row: &str, answer: &Reply, wanted: &str) -> Option<String> {
    let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap());
    let mut found: Vec<String> = causes.iter().map(text).collect();
    let mut wanted: Vec<String> = serde_json::from_value(written(wanted)).unwrap();
    // Upstream tells the same of metadata more than once, by each function that looks at it.
    for all in [&mut found, &mut wanted] {
        all.dedup_by(|text, before| text == before && text.starts_with("metadata."));
    }
    let code = answer.code;
    let same = found.len() == wanted.len()
        && found.iter().zip(&wanted).all(|(found, wanted)| {
            let internal = is_managed(wanted) || (is_internal(wanted) && !is_internal(found));
            comparable(found, internal) == comparable(wanted, internal)
        });
    (!same).then(|| format!("{row} ({code}):\n  upstream: {wanted:?}\n  ours:     {found:?}"))
}

/// The warnings of an answer, if they are not those that upstream tells.
pub(super) fn compare_warnings(row: &str, answer: &Reply, wanted: &str) -> Option<String> {
    let told: Vec<String> = serde_json::from_str(wanted).unwrap();
    let quoted = |told: String| format!("299 - \"{}\"", told.replace('\\', "\\\\").replace('"', "\\\""));
    let told: Vec<String> = told.into_iter().map(quoted).collect();
    // That a kind has no effect here is for users of this API alone.
    let found: Vec<String> = answer.warnings.iter().filter(|told| !told.contains("is stored, but")).cloned().collect();
    (told != found).then(|| format!("{row}:\n  upstream: {told:?}\n  ours:     {found:?}"))
}

#[tokio::test]
async fn what_upstream_refuses_is_refused_in_its_words() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in REFUSALS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, pointer, value, wanted] = fields[..] else { panic!("{line}") };
        let version = served(&api, api_version, kind);
        let path = format!("{}?dryRun=All", collection(&version));
        let answer = call(&api, "POST", &path, with(object(&version, "x"), pointer, value)).await;
        wrong.extend(compare(&format!("{kind} {pointer} {value}"), &answer, wanted));
        rows += 1;
    }
    assert!(rows > 500, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What upstream tells of new objects that it takes: as in [`REFUSALS`], with the warnings. Recorded from kube-apiserver
/// 1.36.
static WARNINGS: LazyLock<String> = LazyLock::new(|| table("warnings"));

#[tokio::test]
async fn clients_are_told_what_upstream_tells_them() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in WARNINGS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, pointer, value, wanted] = fields[..] else { panic!("{line}") };
        let version = served(&api, api_version, kind);
        let path = format!("{}?dryRun=All", collection(&version));
        let answer = call(&api, "POST", &path, with(object(&version, "w"), pointer, value)).await;
        assert_eq!(answer.code, 201, "{kind} {pointer} {value}: {}", answer.body);
        wrong.extend(compare_warnings(&format!("{kind} {pointer} {value}"), &answer, wanted));
        rows += 1;
    }
    assert!(rows > 40, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What upstream tells of changes that it takes: as in [`CHANGES`], with the warnings.
static WARNING_CHANGES: &str = include_str!("warning_changes.tsv");

#[tokio::test]
async fn clients_are_told_what_upstream_tells_them_of_changes() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in WARNING_CHANGES.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, subresource, pointer, value, wanted] = fields[..] else { panic!("{line}") };
        let version = served(&api, api_version, kind);
        call(&api, "POST", &collection(&version), object(&version, "x")).await;
        let one = format!("{}/{}", collection(&version), name_of(&version, "x"));
        let stored = call(&api, "GET", &one, Value::Null).await.body;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let path = format!("{one}{slash}{subresource}?dryRun=All");
        let answer = call(&api, "PUT", &path, with(stored, pointer, value)).await;
        assert_eq!(answer.code, 200, "{line}: {}", answer.body);
        wrong.extend(compare_warnings(&format!("{kind} {subresource} {pointer} {value}"), &answer, wanted));
        rows += 1;
    }
    assert!(rows > 15, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn changes_that_upstream_refuses_are_refused_in_its_words() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in CHANGES.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, subresource, pointer, value, wanted] = fields[..] else { panic!("{line}") };
        let version = served(&api, api_version, kind);
        // Kinds in two versions share their objects.
        let name = if api_version == "autoscaling/v1" { "y" } else { "x" };
        call(&api, "POST", &collection(&version), object(&version, name)).await;
        let one = format!("{}/{}", collection(&version), name_of(&version, name));
        let stored = call(&api, "GET", &one, Value::Null).await;
        assert_eq!(stored.code, 200, "{kind}: {}", stored.body);
        let slash = if subresource.is_empty() { "" } else { "/" };
        let path = format!("{one}{slash}{subresource}?dryRun=All");
        let answer = call(&api, "PUT", &path, with(stored.body, pointer, value)).await;
        wrong.extend(compare(&format!("{kind} {subresource} {pointer} {value}"), &answer, wanted));
        rows += 1;
    }
    assert!(rows > 100, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What upstream tolerates of a stored object that breaks a rule: `apiVersion`, kind, a pointer into the object, what stands
/// there, the errors of a new object with it, and those of another change of the stored one. Recorded from kube-apiserver 1.36,
/// whose storage was written past it.
static TOLERATED: &str = include_str!("tolerated.tsv");

#[tokio::test]
async fn what_is_stored_is_tolerated_as_upstream_does() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in TOLERATED.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, pointer, value, refused, tolerated] = fields[..] else { panic!("{line}") };
        let api = with_namespace().await;
        let version = served(&api, api_version, kind);
        let path = collection(&version);
        let answer =
            call(&api, "POST", &format!("{path}?dryRun=All"), with(object(&version, "w"), pointer, value)).await;
        let row = format!("{kind} {pointer} {value}");
        wrong.extend(compare(&format!("{row}, new"), &answer, refused));
        let stored = call(&api, "POST", &path, object(&version, "x")).await.body;
        write_past(&api, &version.plural, &stored, |object| *object = with(object.take(), pointer, value)).await;
        let one = format!("{path}/{}", name_of(&version, "x"));
        let mut changed = call(&api, "GET", &one, Value::Null).await.body;
        changed["metadata"]["annotations"]["an"] = "2".into();
        let mut answer = call(&api, "PUT", &one, changed).await;
        assert!(matches!(answer.code, 200 | 422), "{row}: {}", answer.body);
        // Upstream tells the same more than once where several functions look at it.
        let mut once: Vec<Value> = serde_json::from_str(tolerated).unwrap();
        once.dedup();
        if let Some(causes) = answer.body["details"]["causes"].as_array_mut() {
            causes.dedup();
        }
        wrong.extend(compare(&format!("{row}, stored"), &answer, &Value::from_iter(once).to_string()));
        rows += 1;
    }
    assert!(rows > 80, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
