//! Profiles of AppArmor and seccomp, as annotations and as fields.

use serde_json::{Value, json};

use super::refusals::compare;
use crate::apiserver::tests::{call, with_namespace};

/// `Pod`, or `Deployment` for its template; annotations; spec; the errors of fields; the warnings; the security contexts of
/// containers in the answer. Recorded from kube-apiserver 1.36.
static ROWS: &str = include_str!("profiles.tsv");

#[tokio::test]
async fn profiles_are_read_as_upstream_reads_them() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in ROWS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, annotations, spec, refused, warnings, contexts] = fields[..] else { panic!("{line}") };
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let metadata = json!({"name": "x", "labels": {"a": "b"}, "annotations": value(annotations)});
        let template = json!({"metadata": metadata, "spec": value(spec)});
        let (path, object, at) = match kind {
            "Pod" => ("/api/v1/namespaces/n/pods", template, "/spec"),
            _ => {
                let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
                let deployment = json!({"metadata": {"name": "x"}, "spec": spec});
                ("/apis/apps/v1/namespaces/n/deployments", deployment, "/spec/template/spec")
            }
        };
        let answer = call(&api, "POST", &format!("{path}?dryRun=All"), object).await;
        let row = format!("{kind} {annotations} {spec}");
        wrong.extend(compare(&row, &answer, refused));
        let told: Vec<String> = serde_json::from_str(warnings).unwrap();
        let told: Vec<String> = told.iter().map(|told| format!("299 - \"{}\"", told.replace('"', "\\\""))).collect();
        if told != answer.warnings {
            wrong.push(format!("{row}:\n  upstream: {told:?}\n  ours:     {:?}", answer.warnings));
        }
        if let Some(spec) = answer.body.pointer(at).filter(|_| answer.code == 201) {
            let containers = ["containers", "initContainers"].map(|list| spec[list].as_array().unwrap());
            let containers = containers.into_iter().flatten().filter(|one| !one["securityContext"].is_null());
            let found: serde_json::Map<String, Value> = containers
                .map(|one| (one["name"].as_str().unwrap().to_owned(), one["securityContext"].clone()))
                .collect();
            if Value::Object(found.clone()) != value(contexts) {
                wrong.push(format!("{row}:\n  upstream: {contexts}\n  ours:     {found:?}"));
            }
        }
        rows += 1;
    }
    assert!(rows > 80, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
