use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::registry::{Gvk, of_kind};

fn gvk(kind: &str) -> &'static Gvk {
    &of_kind(kind).unwrap().gvk
}

fn defaulted(kind: &str, mut value: Value) -> Value {
    default(gvk(kind), &mut value);
    value
}

fn errors(kind: &str, value: Value) -> Vec<String> {
    let value = defaulted(kind, value);
    validate_create(gvk(kind), &value).into_iter().map(|e| format!("{}: {}", e.field, e.detail)).collect()
}

#[test]
fn bodies_are_read_with_their_faults() {
    let json = decode(br#"{"a":1,"b":{"c":1,"c":2},"l":[{"x":1,"x":2}],"big":9007199254740993}"#, ContentType::Json).unwrap();
    assert_eq!(json.duplicates, ["b.c", "l[0].x"]);
    assert_eq!(json.value["big"], json!(9_007_199_254_740_993i64));
    for broken in [&b"{"[..], b"", b"[1,]", b"{} x", b"\xff"] {
        assert!(decode(broken, ContentType::Json).is_err(), "{broken:?}");
    }
    assert_eq!(decode(b"mode: 0644\n", ContentType::Yaml).unwrap().value["mode"], 420);
    assert!(decode(b"a: [b\n", ContentType::Yaml).unwrap_err().contains("line"));
}

#[test]
fn unknown_and_mistyped_fields_are_named_by_path() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "imagePolicy": "x", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
        "ports": [{"containerPort": "80"}]}], "colour": 1}});
    let problems = unknown_fields(gvk("Pod"), &pod);
    assert_eq!(problems.unknown, ["spec.colour", "spec.containers[0].imagePolicy"]);
    assert_eq!(problems.wrong.len(), 1, "{:?}", problems.wrong);
    assert!(problems.wrong[0].contains("spec.containers[0].ports[0].containerPort"), "{:?}", problems.wrong);
    for resource in crate::registry::TYPES {
        let empty = json!({"apiVersion": resource.gvk.api_version(), "kind": resource.gvk.kind, "metadata": {"name": "x"}});
        assert_eq!(unknown_fields(&resource.gvk, &empty), FieldProblems::default(), "{}", resource.gvk.kind);
    }
}

#[test]
fn defaults_of_pods_and_controllers() {
    let pod = defaulted("Pod", json!({"spec": {"containers": [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1"}}}, {"name": "d", "image": "host:5000/x:1"}], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]}}));
    let spec = &pod["spec"];
    assert_eq!((&spec["restartPolicy"], &spec["dnsPolicy"], &spec["terminationGracePeriodSeconds"]), (&json!("Always"), &json!("ClusterFirst"), &json!(30)));
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["containers"][1]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(spec["containers"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(spec["containers"][0]["resources"]["requests"]["cpu"], "1");
    assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
    assert_eq!(spec["volumes"][1]["secret"]["defaultMode"], 420);
    let rc = defaulted("ReplicationController", json!({"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}}));
    assert_eq!((&rc["spec"]["replicas"], &rc["spec"]["selector"], &rc["metadata"]["labels"]), (&json!(1), &json!({"a": "b"}), &json!({"a": "b"})));
    let service = defaulted("Service", json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}}));
    assert_eq!(service["spec"]["ports"][0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Cluster");
    let secret = defaulted("Secret", json!({"stringData": {"a": "x"}}));
    assert_eq!((&secret["type"], &secret["data"]["a"], secret.get("stringData")), (&json!("Opaque"), &json!("eA=="), None));
    // Filling in twice changes nothing more.
    assert_eq!(defaulted("Pod", pod.clone()), pod);
    assert_eq!(defaulted("ReplicationController", rc.clone()), rc);
}

#[test]
fn refusals_in_upstreams_words() {
    let rc = |policy: &str, label: &str| {
        json!({"metadata": {"name": "x"}, "spec": {"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": label}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}}}})
    };
    assert!(errors("ReplicationController", rc("Always", "b")).is_empty());
    assert_eq!(errors("ReplicationController", rc("Never", "b")), ["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""]);
    assert_eq!(errors("ReplicationController", rc("Always", "c")), ["spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`"]);
    let pod = |container: Value| json!({"metadata": {"name": "x"}, "spec": {"containers": [container]}});
    for (container, words) in [
        (json!({"name": "c"}), "spec.containers[0].image: Required value"),
        (json!({"name": "C", "image": "i"}), "spec.containers[0].name: Invalid value: \"C\""),
        (json!({"name": "c", "image": "i", "ports": [{"containerPort": 70000}]}), "must be between 1 and 65535"),
        (json!({"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}), "volumeMounts[0].name: Not found: \"v\""),
        (json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}), "must be less than or equal to cpu limit of 1"),
        (json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "much"}}}), "quantities must match"),
        (json!({"name": "c", "image": "i", "imagePullPolicy": "Sometimes"}), "Unsupported value: \"Sometimes\""),
    ] {
        let found = errors("Pod", pod(container.clone()));
        assert!(found.iter().any(|e| e.contains(words)), "{words} is missing for {container}: {found:?}");
    }
    assert_eq!(errors("Pod", json!({"metadata": {"name": "x"}, "spec": {"containers": []}})), ["spec.containers: Required value"]);
    assert!(errors("ConfigMap", json!({"metadata": {"name": "A_b"}}))[0].starts_with("metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain"));
    assert_eq!(errors("Service", json!({"metadata": {"name": "s"}, "spec": {}})), ["spec.ports: Required value"]);
    assert!(!errors("Secret", json!({"metadata": {"name": "s"}, "data": {"a": "geheim!"}}))[0].contains("geheim"), "secrets are not repeated");
}

#[test]
fn only_some_fields_of_a_living_pod_may_change() {
    let old = defaulted("Pod", json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}));
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(pointer).unwrap() = value;
        validate_update(gvk("Pod"), &new, &old)
    };
    assert!(changed("/spec/containers/0/image", json!("i:2")).is_empty());
    assert!(changed("/spec/restartPolicy", json!("Never"))[0].detail.starts_with("Forbidden: pod updates may not change"));
    assert!(!changed("/metadata/name", json!("y")).is_empty());
}

#[test]
fn documents_hold_what_kubectl_looks_for() {
    let document = openapi_document("", "v1");
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"]["x-kubernetes-patch-merge-key"], "containerPort");
    assert_eq!(schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"]["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(schemas["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode(&bytes, ContentType::Json);
        let _ = decode(&bytes, ContentType::Yaml);
    }

    #[test]
    fn nothing_panics_on_odd_objects(text in "[\\[\\]{}:,\"a-c0-9]{0,40}") {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({"spec": text, "metadata": 3, "data": [1]}));
        for resource in crate::registry::TYPES {
            let mut value = value.clone();
            default(&resource.gvk, &mut value);
            let _ = validate_create(&resource.gvk, &value);
            let _ = validate_update(&resource.gvk, &value, &json!({}));
            let _ = unknown_fields(&resource.gvk, &value);
        }
    }
}
