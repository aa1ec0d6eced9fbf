//! Specs of pods, in pods and in templates.

use serde_json::{Value, json};

use super::refusals::compare;
use crate::apiserver::tests::{PODS, call, with_namespace};

/// `Pod`, or `Deployment` for its template; the spec, but for its container; the errors of fields; the warnings; and what
/// the answer has of affinity and spreading, if it was asked. Recorded from kube-apiserver 1.36.
static PLACEMENT: &str = include_str!("placement.tsv");

/// The path and object to create, with the spec of its pods.
fn created(kind: &str, rest: &str) -> (String, Value) {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().unwrap().extend(serde_json::from_str::<serde_json::Map<_, _>>(rest).unwrap());
    let template = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec});
    let (path, object) = match kind {
        "Pod" => (PODS, template),
        _ => {
            let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
            ("/apis/apps/v1/namespaces/n/deployments", json!({"metadata": {"name": "x"}, "spec": spec}))
        }
    };
    (format!("{path}?dryRun=All"), object)
}

#[tokio::test]
async fn placement_is_validated_as_upstream_does() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in PLACEMENT.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, rest, refused, _, answered] = fields[..] else { panic!("{line}") };
        let (path, object) = created(kind, rest);
        let answer = call(&api, "POST", &path, object).await;
        let row = format!("{kind} {rest}");
        wrong.extend(compare(&row, &answer, refused));
        if !answered.is_empty() && answer.code == 201 {
            let at = if kind == "Pod" { "/spec" } else { "/spec/template/spec" };
            let spec = answer.body.pointer(at).unwrap();
            for (field, wanted) in serde_json::from_str::<serde_json::Map<_, _>>(answered).unwrap() {
                if spec[&field] != wanted {
                    wrong.push(format!("{row}:\n  upstream: {wanted}\n  ours:     {}", spec[&field]));
                }
            }
        }
        rows += 1;
    }
    assert!(rows > 200, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
