//! The checks compared with what a real API server said of the same pods, labels of namespaces, and requests through the API.

mod cases;
mod configuration;

use serde_json::{Value, json};

use cases::Recorded;

use super::{
    checks::{describe, violations},
    existing, is_significant_update, pod_of,
    policy::{Level, LevelVersion, Policy, Version},
};
use crate::apiserver::{
    User,
    tests::{Reply, api, call, send},
};

/// What a real API server said; the first lines say how it was recorded.
const RECORDED: &str = include_str!("recorded.tsv");

fn level(text: &str) -> LevelVersion {
    let (level, version) = text.split_once(':').unwrap();
    let labels = json!({
        "pod-security.kubernetes.io/enforce": level,
        "pod-security.kubernetes.io/enforce-version": version,
    });
    let (policy, errors) = Policy::of_labels(&labels, Policy::default());
    assert!(errors.is_empty(), "{text}: {errors:?}");
    policy.enforce
}

#[test]
fn checks_say_what_upstreams_say() {
    let recorded = Recorded::read(RECORDED);
    assert_eq!(recorded.text(), RECORDED, "it is read as it is written");
    let mut differences = Vec::new();
    for case in &recorded.cases {
        for (text, wanted) in recorded.levels.iter().zip(&case.said) {
            let found = describe(&violations(level(text), pod_of(&case.object())));
            if found != *wanted {
                differences.push(format!("{} at {text}:\n  {found}\n  {wanted}", case.name));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences: {}",
        differences.len(),
        differences[..differences.len().min(9)].join("\n")
    );
}

#[test]
fn labels_choose_levels() {
    let of = |labels: &[(&str, &str)]| {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), json!(value))).collect();
        let (policy, errors) = Policy::of_labels(&Value::Object(labels), Policy::default());
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        (format!("{} {} {}", policy.enforce, policy.audit, policy.warn), errors.join("; "))
    };
    let path = "metadata.labels[pod-security.kubernetes.io/";
    for (labels, policy, errors) in [
        (&[][..], "privileged:latest privileged:latest privileged:latest", String::new()),
        (&[("enforce", "baseline")], "baseline:latest privileged:latest baseline:latest", String::new()),
        (
            &[("enforce", "restricted"), ("enforce-version", "v1.30")],
            "restricted:v1.30 privileged:latest restricted:v1.30",
            String::new(),
        ),
        (
            &[("enforce", "baseline"), ("warn", "restricted"), ("warn-version", "v1.0"), ("audit", "baseline")],
            "baseline:latest baseline:latest restricted:v1.0",
            String::new(),
        ),
        (
            &[("enforce", "baseline"), ("warn", "privileged")],
            "baseline:latest privileged:latest privileged:latest",
            String::new(),
        ),
        (
            &[("enforce", "x"), ("warn", "")],
            "restricted:latest privileged:latest privileged:latest",
            format!(
                "{path}enforce]: Invalid value: \"x\": must be one of privileged, baseline, restricted; {path}warn]: Invalid value: \"\": must be one of privileged, baseline, restricted"
            ),
        ),
        (
            &[("enforce-version", "v1.01"), ("audit-version", "2")],
            "privileged:latest privileged:latest privileged:latest",
            format!(
                "{path}enforce-version]: Invalid value: \"v1.01\": must be \"latest\" or \"v1.x\"; {path}audit-version]: Invalid value: \"2\": must be \"latest\" or \"v1.x\""
            ),
        ),
    ] {
        assert_eq!(of(labels), (policy.to_owned(), errors), "{labels:?}");
    }
}

#[test]
fn only_a_tighter_level_can_refuse_what_is_there() {
    for (new, old, tightens) in [
        ("baseline:latest", "privileged:latest", true),
        ("restricted:latest", "baseline:latest", true),
        ("baseline:latest", "restricted:latest", false),
        ("baseline:v1.0", "restricted:latest", true),
        ("privileged:v1.0", "restricted:latest", false),
        ("baseline:v1.0", "baseline:v1.0", false),
        ("baseline:latest", "baseline:v1.0", true),
    ] {
        assert_eq!(level(new).tightens(level(old)), tightens, "{old} to {new}");
    }
}

#[test]
fn existing_pods_are_counted_by_what_they_violate() {
    let pod = |name: &str, host: bool, owner: &str| {
        json!({
            "metadata": {"name": name, "ownerReferences": [{"controller": true, "uid": owner}]},
            "spec": {"hostNetwork": host, "hostIPC": !host && owner == "o", "containers": []},
        })
    };
    let baseline = LevelVersion { level: Level::Baseline, version: Version::Latest };
    let pods =
        [pod("c", true, "x"), pod("a", true, "x"), pod("b", true, "y"), pod("good", false, "z"), pod("i", false, "o")];
    let first = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"";
    assert_eq!(existing::warnings("n", baseline, &pods), [first, "a (and 3 other pods): host namespaces"]);
    assert_eq!(existing::warnings("n", baseline, &pods[1..3]), [first, "a (and 1 other pod): host namespaces"]);
    assert_eq!(existing::warnings("n", baseline, &pods[3..4]), [""; 0]);
    let many: Vec<Value> = (0..3001).map(|i| pod(&format!("p{i}"), false, "same")).collect();
    assert_eq!(
        existing::warnings("n", baseline, &many),
        ["new PodSecurity enforce level only checked against the first 3000 of 3001 existing pods"]
    );
}

#[test]
fn an_update_is_significant_if_checks_may_see_it() {
    let old = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (change, significant) in [
        (json!({"metadata": {"labels": {"a": "b"}}}), false),
        (json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}), true),
        (json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}), true),
        (json!({"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/c": "x"}}}), true),
        (json!({"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/d": "x"}}}), false),
    ] {
        let mut new = old.clone();
        json_patch::merge(&mut new, &change);
        assert_eq!(is_significant_update(&new, &old), significant, "{change}");
    }
}

#[tokio::test]
async fn a_namespace_refuses_and_warns() {
    const PODS: &str = "/api/v1/namespaces/n/pods";
    let api = api();
    let labels = |labels: Value| json!({"metadata": {"name": "n", "labels": labels}});
    let refused =
        call(&api, "POST", "/api/v1/namespaces", labels(json!({"pod-security.kubernetes.io/warn": "x"}))).await;
    assert_eq!(
        (refused.code, &refused.body["details"]["causes"][0]["field"]),
        (422, &json!("metadata.labels[pod-security.kubernetes.io/warn]"))
    );
    assert_eq!(call(&api, "POST", "/api/v1/namespaces", labels(json!({}))).await.code, 201);
    let pod = |name: &str, image: &str| json!({"metadata": {"name": name}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": image}]}});
    assert_eq!(call(&api, "POST", PODS, pod("p", "i")).await.code, 201);

    let tighter =
        call(&api, "PATCH", "/api/v1/namespaces/n", labels(json!({"pod-security.kubernetes.io/enforce": "baseline"})))
            .await;
    let warned = |reply: &Reply| reply.warnings.iter().map(|w| w.replace('\\', "")).collect::<Vec<_>>();
    assert_eq!((tighter.code, warned(&tighter)), (200, vec![
        "299 - \"existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"\"".to_owned(),
        "299 - \"p: host namespaces\"".to_owned(),
    ]));
    let refused = call(&api, "POST", PODS, pod("q", "i")).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "pods \"q\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    // Existing violations may stay when a pod is changed.
    let label = call(&api, "PATCH", &format!("{PODS}/p"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!((label.code, label.warnings.len()), (200, 0), "{}", label.body);
    let other = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "j"}]).to_string();
    let path = format!("{PODS}/p");
    let worse = send(&api, &User::internal("t"), "PATCH", &path, "application/json-patch+json", "*/*", &other).await;
    assert_eq!(worse.code, 403, "{}", worse.body);
    // Templates are stored, with a warning.
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("", "i")["spec"]});
    let controller = json!({"metadata": {"name": "r"}, "spec": {"selector": {"a": "b"}, "template": template}});
    let made = call(&api, "POST", "/api/v1/namespaces/n/replicationcontrollers", controller).await;
    assert_eq!(
        (made.code, warned(&made)),
        (
            201,
            vec![
                "299 - \"would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)\""
                    .to_owned()
            ]
        ),
        "{}",
        made.body
    );
}
