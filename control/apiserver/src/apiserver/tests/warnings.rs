//! Warnings reach the client whatever becomes of its request. Recorded from kube-apiserver 1.36.

use super::*;

const JOBS: &str = "/apis/batch/v1/namespaces/n/jobs";
const PRESERVED: &str = "299 - \"child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning\"";

#[tokio::test]
async fn deletions_without_a_policy_are_warned_of() {
    let api = with_namespace().await;
    for (path, body, code, warnings) in [
        (format!("{JOBS}/none"), Value::Null, 404, vec![PRESERVED]),
        (format!("{JOBS}/none?dryRun=All"), Value::Null, 404, vec![PRESERVED]),
        (JOBS.to_owned(), Value::Null, 200, vec![PRESERVED]),
        (JOBS.to_owned(), json!({"gracePeriodSeconds": 0}), 200, vec![PRESERVED]),
        (JOBS.to_owned(), json!({"propagationPolicy": "Background"}), 200, vec![]),
        (format!("{JOBS}?orphanDependents=true"), Value::Null, 200, vec![]),
        (MAPS.to_owned(), Value::Null, 200, vec![]),
    ] {
        let reply = call(&api, "DELETE", &path, body.clone()).await;
        assert_eq!(
            (reply.code, reply.warnings),
            (code, warnings.into_iter().map(str::to_owned).collect()),
            "{path} {body}"
        );
    }
}

#[tokio::test]
async fn a_refused_request_is_warned_too() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("there")).await;
    let told = |field: &str| format!("299 - \"unknown field \\\"{field}\\\"\"");
    for (name, code) in [("X_", 422), ("there", 409), ("new", 201)] {
        let mut object = map(name);
        object["ü"] = json!(1);
        let reply = call(&api, "POST", MAPS, object).await;
        assert_eq!((reply.code, reply.warnings), (code, vec![told("ü")]), "{name}");
    }
    // Also where something is posted to an object, and of its scale.
    let eviction = json!({"metadata": {"name": "none"}, "x": 1});
    let reply = call(&api, "POST", &format!("{PODS}/none/eviction"), eviction).await;
    assert_eq!((reply.code, reply.warnings), (404, vec![told("x")]));
}
