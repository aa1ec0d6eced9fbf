//! A node joins a cluster, and the cluster runs pods on it.

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

crate::tests![a_node_serves_a_cluster];

/// The example that the README starts with.
const WEB: &str = include_str!("../../../docs/examples/web.yaml");

fn a_node_serves_a_cluster() {
    let testbed = Testbed::on_cluster();
    testbed.load("curl");
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();

    // The cluster's controllers and scheduler create pods here, and services answer.
    kubectl.apply(WEB);
    let pods = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    eventually(DEFAULT_TIMEOUT, "the service answers", || {
        testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:30080/")
    });

    // The API server reaches the node's API with no other rights than in kubeadm's clusters.
    let name = pods[0]["metadata"]["name"].as_str().unwrap_or_default();
    assert!(kubectl.run(&["logs", name]).contains("nginx"));
    assert_eq!(kubectl.run(&["exec", name, "--", "hostname"]).trim(), name);

    // A pod reaches the API by the service's address, and is authenticated by its token.
    let ask = "T=/var/run/secrets/kubernetes.io/serviceaccount; curl -sS --cacert $T/ca.crt -H \"Authorization: Bearer $(cat $T/token)\" \
               -o /dev/null -w '%{http_code}' https://kubernetes.default.svc/api/v1/namespaces/default/pods --resolve kubernetes.default.svc:443:10.96.0.1";
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "windlass/curl:1", "command": ["sh", "-c", ask]}]},
    });
    kubectl.apply(&pod.to_string());
    kubectl.watch(
        DEFAULT_TIMEOUT,
        "the pod has asked",
        &["pods", "--field-selector", "metadata.name=asks"],
        |pod: &Value| (pod["status"]["phase"] == "Succeeded").then_some(()),
    );
    assert_eq!(kubectl.run(&["logs", "asks"]), "403", "it is known and may not list pods");

    // Deleted pods are removed at once.
    let _ = kubectl.run(&["delete", "rc,pod", "--all", "--timeout=30s"]);
    eventually(DEFAULT_TIMEOUT, "all pods are gone", || kubectl.ready_pods("app=web", 0));
}
