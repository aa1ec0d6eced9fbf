use crate::apiserver::tests::{
    call,
    templates::{collection, object},
    with_namespace,
};

use super::*;

/// What upstream refuses: `apiVersion`, kind, a pointer into the sample of the kind, what stands there instead (`-` for
/// nothing), and the errors of its fields. Recorded from kube-apiserver 1.36.
static REFUSALS: &str = include_str!("refusals.tsv");

/// The object with another value at a pointer, or without one.
fn with(mut object: Value, pointer: &str, value: &str) -> Value {
    let (holder, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/");
    let mut place = &mut object;
    for step in holder.split('/').skip(1) {
        place = match place {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => &mut other[step],
        };
    }
    match (place, value) {
        (Value::Object(fields), "-") => drop(fields.remove(&key)),
        (Value::Array(items), value) => {
            let (at, value) = (key.parse::<usize>().unwrap(), serde_json::from_str(value).unwrap());
            if at < items.len() { items[at] = value } else { items.push(value) }
        }
        (other, value) => other[key] = serde_json::from_str(value).unwrap(),
    }
    object
}

#[tokio::test]
async fn what_upstream_refuses_is_refused_in_its_words() {
    let api = with_namespace().await;
    let catalog = api.catalogs().current();
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in REFUSALS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, pointer, value, wanted] = fields[..] else { panic!("{line}") };
        let served = |version: &&Arc<Version>| version.gvk.kind == kind && version.gvk.api_version() == api_version;
        let version = catalog.all().find(served).unwrap_or_else(|| panic!("{api_version} {kind} is not served"));
        let refused = with(object(version, "x"), pointer, value);
        let path = format!("{}?dryRun=All", collection(version));
        let answer = call(&api, "POST", &path, refused).await;
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let text =
            |cause: &Value| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap());
        let found: Vec<String> = causes.iter().map(text).collect();
        let wanted: Vec<String> = serde_json::from_str(wanted).unwrap();
        if found != wanted {
            wrong.push(format!(
                "{kind} {pointer} {value} ({}):\n  upstream: {wanted:?}\n  ours:     {found:?}",
                answer.code
            ));
        }
        rows += 1;
    }
    assert!(rows > 500, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
