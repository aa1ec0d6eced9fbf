use serde_json::json;

use super::*;

#[test]
fn defaults_of_pods_and_controllers() {
    let pod = defaulted(
        "Pod",
        json!({"spec": {"containers": [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1"}}}, {"name": "d", "image": "host:5000/x:1"}], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]}}),
    );
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["restartPolicy"], &spec["dnsPolicy"], &spec["terminationGracePeriodSeconds"]),
        (&json!("Always"), &json!("ClusterFirst"), &json!(30))
    );
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["containers"][1]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(spec["containers"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(spec["containers"][0]["resources"]["requests"]["cpu"], "1");
    assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
    assert_eq!(spec["volumes"][1]["secret"]["defaultMode"], 420);
    let rc = defaulted(
        "ReplicationController",
        json!({"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}}),
    );
    assert_eq!(
        (&rc["spec"]["replicas"], &rc["spec"]["selector"], &rc["metadata"]["labels"]),
        (&json!(1), &json!({"a": "b"}), &json!({"a": "b"}))
    );
    let service = defaulted("Service", json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}}));
    assert_eq!(service["spec"]["ports"][0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Cluster");
    let numberless = defaulted("Service", json!({"spec": {"ports": [{"name": "a"}]}}));
    assert_eq!(numberless["spec"]["ports"][0], json!({"name": "a", "protocol": "TCP"}));
    let secret = defaulted("Secret", json!({"stringData": {"a": "x"}}));
    assert_eq!(
        (&secret["type"], &secret["data"]["a"], secret.get("stringData")),
        (&json!("Opaque"), &json!("eA=="), None)
    );
    // Filling in twice changes nothing more.
    assert_eq!(defaulted("Pod", pod.clone()), pod);
    assert_eq!(defaulted("ReplicationController", rc.clone()), rc);
}

#[test]
fn defaults_in_their_finer_points() {
    let pod = defaulted(
        "Pod",
        json!({"spec": {"hostNetwork": true, "serviceAccountName": "a", "containers": [{"name": "c", "image": "x@sha256:0",
        "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}},
        "readinessProbe": {"timeoutSeconds": 0, "grpc": {"port": 1}}, "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}}),
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert_eq!(container["ports"][0]["hostPort"], 80);
    assert_eq!(
        container["resources"],
        json!({"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}})
    );
    assert_eq!(
        container["readinessProbe"],
        json!({"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, "grpc": {"port": 1, "service": ""}})
    );
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    assert_eq!(pod["spec"]["serviceAccount"], "a");
    // A template in a controller gets neither host ports nor requests.
    let rc = defaulted(
        "ReplicationController",
        json!({"spec": {"template": {"spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "x",
        "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}]}}}}),
    );
    let container = &rc["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["ports"][0], &container["resources"]),
        (&json!({"containerPort": 80, "protocol": "TCP"}), &json!({"limits": {"cpu": "1"}}))
    );
    let going = defaulted(
        "Namespace",
        json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "status": {"phase": "Terminating"}}),
    );
    assert_eq!((going["spec"].get("finalizers"), &going["status"]["phase"]), (None, &json!("Terminating")));
    // What another type has is refused, or dropped by the update that changes the type.
    let moved =
        defaulted("Service", json!({"spec": {"type": "ClusterIP", "externalTrafficPolicy": "Local", "ports": []}}));
    assert_eq!(moved["spec"]["externalTrafficPolicy"], "Local");
}

#[test]
fn templates_of_claims_are_claims_whatever_they_say() {
    for said in [json!({}), json!({"apiVersion": "a", "kind": "Q"})] {
        let set = defaulted("StatefulSet", json!({"spec": {"volumeClaimTemplates": [said]}}));
        let claim = &set["spec"]["volumeClaimTemplates"][0];
        assert_eq!((&claim["apiVersion"], &claim["kind"]), (&json!("v1"), &json!("PersistentVolumeClaim")));
    }
}
