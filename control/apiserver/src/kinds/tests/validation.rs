use serde_json::{Value, json};

use super::*;

#[test]
fn refusals_in_upstreams_words() {
    let rc = |policy: &str, label: &str| {
        json!({"metadata": {"name": "x"}, "spec": {"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": label}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}}}})
    };
    assert!(errors("ReplicationController", rc("Always", "b")).is_empty());
    assert_eq!(
        errors("ReplicationController", rc("Never", "b")),
        ["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""]
    );
    assert_eq!(
        errors("ReplicationController", rc("Always", "c")),
        ["spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`"]
    );
    let pod = |container: Value| json!({"metadata": {"name": "x"}, "spec": {"containers": [container]}});
    for (container, words) in [
        (json!({"name": "c"}), "spec.containers[0].image: Required value"),
        (json!({"name": "C", "image": "i"}), "spec.containers[0].name: Invalid value: \"C\""),
        (json!({"name": "c", "image": "i", "ports": [{"containerPort": 70000}]}), "must be between 1 and 65535"),
        (
            json!({"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}),
            "volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
            "must be less than or equal to cpu limit of 1",
        ),
        (json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "much"}}}), "quantities must match"),
        (json!({"name": "c", "image": "i", "imagePullPolicy": "Sometimes"}), "Unsupported value: \"Sometimes\""),
    ] {
        let found = errors("Pod", pod(container.clone()));
        assert!(found.iter().any(|e| e.contains(words)), "{words} is missing for {container}: {found:?}");
    }
    assert_eq!(
        errors("Pod", json!({"metadata": {"name": "x"}, "spec": {"containers": []}})),
        ["spec.containers: Required value"]
    );
    assert!(
        errors("ConfigMap", json!({"metadata": {"name": "A_b"}}))[0]
            .starts_with("metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain")
    );
    assert_eq!(errors("Service", json!({"metadata": {"name": "s"}, "spec": {}})), ["spec.ports: Required value"]);
    let wrong = unknown_fields(gvk("Secret"), &json!({"metadata": {"name": "s"}, "data": {"a": "geheim!"}})).wrong;
    assert_eq!(wrong, ["illegal base64 data at input byte 6 of data.a"], "secrets are not repeated");
}

#[test]
fn only_some_fields_of_a_living_pod_may_change() {
    let old =
        defaulted("Pod", json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}));
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(pointer).unwrap() = value;
        validate_update(gvk("Pod"), &new, &old)
    };
    assert!(changed("/spec/containers/0/image", json!("i:2")).is_empty());
    assert!(
        changed("/spec/restartPolicy", json!("Never"))[0].detail.starts_with("Forbidden: pod updates may not change")
    );
    assert!(!changed("/metadata/name", json!("y")).is_empty());
}

#[test]
fn changes_that_are_refused() {
    let update_errors = |kind: &str, old: Value, new: Value| -> Vec<String> {
        let (old, new) = (defaulted(kind, old), defaulted(kind, new));
        validate_update(gvk(kind), &new, &old).into_iter().map(|e| format!("{}: {}", e.field, e.detail)).collect()
    };
    let service = |spec: Value| {
        let mut spec = spec;
        spec["ports"] = json!([{"port": 80}]);
        json!({"metadata": {"name": "s"}, "spec": spec})
    };
    assert_eq!(
        update_errors(
            "Service",
            service(json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]})),
            service(json!({"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.2"]}))
        ),
        ["spec.clusterIPs[0]: Invalid value: [\"10.96.0.2\"]: may not change once set"]
    );
    let external = json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "x.org", "clusterIP": "10.96.0.1"}});
    assert!(
        update_errors("Service", service(json!({"clusterIP": "10.96.0.1"})), external).is_empty(),
        "the address goes with the type"
    );
    let config =
        |data: &str, immutable: bool| json!({"metadata": {"name": "m"}, "data": {"a": data}, "immutable": immutable});
    assert_eq!(
        update_errors("ConfigMap", config("1", true), config("2", true)),
        ["data: Forbidden: field is immutable when `immutable` is set"]
    );
    assert_eq!(
        update_errors("ConfigMap", config("1", true), config("1", false)),
        ["immutable: Forbidden: field is immutable when `immutable` is set"]
    );
    assert!(update_errors("ConfigMap", config("1", false), config("2", true)).is_empty());
    let secret = |kind: &str| json!({"metadata": {"name": "t"}, "type": kind});
    assert_eq!(update_errors("Secret", secret("a"), secret("b")), ["type: Invalid value: \"b\": field is immutable"]);
    let pod = |extra: Value| {
        let mut pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        for (key, value) in extra.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let toleration = json!([{"key": "k", "operator": "Exists"}]);
    assert!(update_errors("Pod", pod(json!({})), pod(json!({"tolerations": toleration}))).is_empty());
    assert_eq!(update_errors("Pod", pod(json!({"tolerations": toleration})), pod(json!({}))).len(), 1);
    assert!(update_errors("Pod", pod(json!({})), pod(json!({"activeDeadlineSeconds": 5}))).is_empty());
    assert_eq!(
        update_errors("Pod", pod(json!({"activeDeadlineSeconds": 5})), pod(json!({"activeDeadlineSeconds": 6}))),
        ["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"]
    );
    let renamed = update_errors(
        "Pod",
        pod(json!({})),
        pod(json!({"nodeName": "n", "containers": [{"name": "c", "image": "i:2", "command": ["x"]}]})),
    );
    assert!(renamed[0].ends_with("changed: spec.containers[0].command, spec.nodeName"), "{renamed:?}");
    assert_eq!(
        update_errors(
            "Pod",
            pod(json!({})),
            pod(json!({"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "i:1"}]}))
        ),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
    let node = |cidr: &str| json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": [cidr]}});
    assert_eq!(update_errors("Node", node("10.0.0.0/24"), node("10.0.1.0/24")).len(), 1);
}
