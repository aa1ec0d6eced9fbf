//! Levels and exemptions from a configuration. What is compared is from kube-apiserver 1.36 with the same file.

use serde_json::{Value, json};

use super::super::configuration::Configuration;
use crate::{
    apiserver::{
        User,
        tests::{call, config, pod, send},
    },
    control_plane::instance::{ApiConfig, Instance as Api},
    kinds,
    plugin::admission::AdmissionConfiguration,
    store::Memory,
};

const CONFIGURATION: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: latest, audit: restricted, warn: restricted}
    exemptions: {usernames: [alice], runtimeClasses: [kata], namespaces: [exempt]}
";

/// An API with the configuration, and namespaces.
async fn configured() -> Api {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admission.yaml");
    std::fs::write(&file, CONFIGURATION).unwrap();
    let admission = AdmissionConfiguration::read(&file).unwrap();
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let api = Api::new(&store, &ApiConfig { admission, ..config() }, None, None);
    for (name, labels) in [
        ("exempt", json!({})),
        ("plain", json!({})),
        ("free", json!({"pod-security.kubernetes.io/enforce": "privileged"})),
    ] {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        assert_eq!(call(&api, "POST", "/api/v1/namespaces", namespace).await.code, 201);
    }
    for name in ["kata", "other"] {
        let class = json!({"metadata": {"name": name}, "handler": "h"});
        assert_eq!(call(&api, "POST", "/apis/node.k8s.io/v1/runtimeclasses", class).await.code, 201);
    }
    api
}

fn privileged(class: Option<&str>) -> Value {
    let mut pod = pod("p");
    pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    if let Some(class) = class {
        pod["spec"]["runtimeClassName"] = json!(class);
    }
    pod
}

#[tokio::test]
async fn defaults_hold_where_labels_say_nothing_and_some_are_exempt() {
    let api = configured().await;
    // Namespace, runtime class, user; the code, and whether there is a warning.
    for (namespace, class, user, wanted) in [
        ("plain", None, "bob", (403, false)),
        ("plain", Some("other"), "bob", (403, false)),
        ("plain", Some("kata"), "bob", (201, false)),
        ("plain", None, "alice", (201, false)),
        ("exempt", None, "bob", (201, false)),
        ("free", None, "bob", (201, true)),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        let json = "application/json";
        let answer = send(&api, &User::internal(user), "POST", &path, json, json, &privileged(class).to_string()).await;
        let found = (answer.code, !answer.warnings.is_empty());
        assert_eq!(found, wanted, "{namespace} {class:?} {user}: {}", answer.body);
    }
}

#[tokio::test]
async fn labels_of_an_exempt_namespace_are_ignored_with_a_warning() {
    let api = configured().await;
    let rows: [(Value, &str); 7] = [
        (json!({"enforce": "baseline"}), ""),
        (json!({"audit": "baseline"}), ""),
        (json!({"enforce": "restricted"}), "enforce=restricted:latest"),
        (json!({"enforce": "restricted", "audit-version": "v1.9"}), "enforce=restricted:latest, audit=restricted:v1.9"),
        (json!({"enforce": "restricted", "warn": "privileged"}), "enforce=restricted:latest"),
        (
            json!({"enforce": "restricted", "warn": "baseline", "audit": "baseline"}),
            "enforce=restricted:latest, audit=baseline:latest, warn=baseline:latest",
        ),
        (json!({"enforce-version": "v1.9"}), "enforce=baseline:v1.9"),
    ];
    for (labels, policy) in rows {
        let labels = labels.as_object().unwrap().iter();
        let labels: Value =
            labels.map(|(name, value)| (format!("pod-security.kubernetes.io/{name}"), value.clone())).collect();
        let patch = json!({"metadata": {"labels": labels}});
        let answer = call(&api, "PATCH", "/api/v1/namespaces/exempt?dryRun=All", patch).await;
        let wanted = format!(
            "299 - \"namespace \\\"exempt\\\" is exempt from Pod Security, and the policy ({policy}) will be ignored\""
        );
        let wanted: Vec<String> = Some(wanted).filter(|_| !policy.is_empty()).into_iter().collect();
        assert_eq!(answer.warnings, wanted, "{labels}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_in_upstreams_words() {
    let kind = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"});
    let with = |field: &str, value: Value| {
        let mut configuration = kind.clone();
        configuration[field] = value;
        Configuration::parse(&configuration)
    };
    assert_eq!(Configuration::parse(&kind), Ok(Configuration::default()));
    let rows = [
        (
            with("defaults", json!({"enforce": "loose", "enforce-version": "v2"})),
            "PodSecurity configuration error: [enforce: must be one of privileged, baseline, restricted, enforce-version: must be \"latest\" or \"v1.x\"]",
        ),
        (with("exemptionz", json!({})), "strict decoding error: unknown field \"exemptionz\""),
        (
            with("exemptions", json!({"usernames": ["", "a", "a"], "namespaces": ["b.c", "x", "x"]})),
            "PodSecurity invalid: [exemptions.namespaces[0]: Invalid value: \"b.c\": must not contain dots, exemptions.namespaces[2]: Duplicate value: \"x\", exemptions.usernames[0]: Invalid value: \"\": username must not be empty, exemptions.usernames[2]: Duplicate value: \"a\"]",
        ),
        (
            with("apiVersion", json!("pod-security.admission.config.k8s.io/v9")),
            "no kind \"PodSecurityConfiguration\" is registered for version \"pod-security.admission.config.k8s.io/v9\"",
        ),
    ];
    for (found, wanted) in rows {
        assert_eq!(found, Err(wanted.to_owned()));
    }
}
