//! Operators that users run, as pods with their projects' own manifests, and what these promise.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use windlass_tests::{Kubectl, eventually};

use crate::judge::{Node, part, text};

type Test = (&'static str, fn(&Node));

/// By the names of their folders.
pub(crate) const TESTS: [Test; 5] = [
    ("tekton", tekton),
    ("cert-manager", cert_manager),
    ("prometheus-operator", prometheus_operator),
    ("kube-state-metrics", kube_state_metrics),
    ("metrics-server", metrics_server),
];

/// Operators come up, elect leaders, make certificates, and restart until each finds the other.
const PATIENCE: Duration = Duration::from_secs(300);

/// A `PrometheusRule` with one expression.
fn rule(name: &str, expression: &str) -> String {
    let groups = json!([{"name": "group", "rules": [{"alert": "Alert", "expr": expression}]}]);
    json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": name},
        "spec": {"groups": groups}})
    .to_string()
}

/// Applies the manifests of an operator and waits until a pod of each of its Deployments is available.
fn deploy(kubectl: &Kubectl<'_>, operator: &str) {
    let folder = part("operators").join(operator);
    // Definitions are above what a client may write into an annotation; objects of theirs come up only after them.
    eventually(PATIENCE, "its manifests can be applied", || {
        kubectl.try_run(&["apply", "--server-side", "--force-conflicts", "-f", text(&folder)])
    });
    let all = ["get", "-f", text(&folder), "-o", "json"];
    eventually(PATIENCE, "its Deployments are available", || {
        let applied: Value = serde_json::from_str(&kubectl.try_run(&all)?)?;
        for object in applied["items"].as_array().into_iter().flatten() {
            let available = object["status"]["availableReplicas"].as_u64();
            anyhow::ensure!(object["kind"] != "Deployment" || available >= Some(1), "{object}");
        }
        Ok(())
    });
}

/// Applies objects that a webhook judges, which may still be coming up.
fn admitted(kubectl: &Kubectl<'_>, manifest: &str) {
    eventually(PATIENCE, "the objects are admitted", || {
        let output = kubectl.output(&["apply", "-f", "-"], manifest);
        anyhow::ensure!(output.ok, "{}", output.err);
        Ok(())
    });
}

/// A webhook refuses the object, and the error has this text of the webhook's. kubectl leaves out who has refused where
/// there are causes.
#[track_caller]
fn denied(kubectl: &Kubectl<'_>, manifest: &str, text: &str) {
    let output = kubectl.output(&["apply", "-f", "-"], manifest);
    assert!(!output.ok && output.err.contains(text), "{output:?}");
}

fn ready(kubectl: &Kubectl<'_>, certificate: &str) {
    eventually(PATIENCE, "the certificate is issued", || {
        kubectl.try_run(&["wait", "--for=condition=Ready", "--timeout=5s", "certificate", certificate])
    });
}

/// Its controller issues certificates, its injector fills the CA bundle of its own webhooks, which deny what is invalid.
fn cert_manager(node: &Node) {
    let kubectl = node.kubectl();
    deploy(&kubectl, "cert-manager");
    admitted(&kubectl, include_str!("../../judges/certificates.yaml"));
    ready(&kubectl, "leaf");
    let secret = kubectl.json(&["secret", "leaf-tls"]).expect("the secret of the certificate");
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        assert!(secret["data"][key].is_string(), "{key} is missing");
    }
    let nameless = json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "nameless"},
        "spec": {"secretName": "nameless", "issuerRef": {"name": "authority", "kind": "ClusterIssuer"}}});
    denied(&kubectl, &nameless.to_string(), "at least one of commonName");
    // Who asks is written by the mutating webhook.
    let requests = kubectl.json(&["certificaterequests"]).expect("the request of the leaf");
    assert_eq!(requests["items"][0]["spec"]["username"], "system:serviceaccount:cert-manager:cert-manager");
    // A lost secret is issued again.
    let _ = kubectl.run(&["delete", "secret", "leaf-tls"]);
    eventually(PATIENCE, "a second revision is issued", || {
        let leaf = kubectl.json(&["certificate", "leaf"])?;
        anyhow::ensure!(leaf["status"]["revision"] == 2, "{leaf}");
        kubectl.try_run(&["get", "secret", "leaf-tls"])
    });
}

/// It makes StatefulSets; its webhooks deny rules and convert configurations.
fn prometheus_operator(node: &Node) {
    const SERVICE: &str = "prometheus-operator-admission-webhook";
    let kubectl = node.kubectl();
    let made = rcgen::generate_simple_self_signed([format!("{SERVICE}.default.svc")]).expect("a certificate");
    let (pem, ca_bundle) = (made.cert.pem(), BASE64_STANDARD.encode(made.cert.pem()));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "admission-webhook-certs"},
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": pem, "tls.key": made.signing_key.serialize_pem()}});
    kubectl.apply(&secret.to_string());
    deploy(&kubectl, "prometheus-operator");
    kubectl.apply(&include_str!("../../judges/monitoring.yaml").replace("CA_BUNDLE", &ca_bundle));
    admitted(&kubectl, &rule("good", "vector(1)"));
    denied(&kubectl, &rule("bad", "vector(1"), "could not parse expression");

    let definition = "crd/alertmanagerconfigs.monitoring.coreos.com";
    let service = json!({"name": SERVICE, "namespace": "default", "path": "/convert"});
    let webhook = json!({"conversionReviewVersions": ["v1beta1", "v1alpha1"],
        "clientConfig": {"service": service, "caBundle": ca_bundle}});
    let patch = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
    let _ = kubectl.run(&["patch", definition, "--type=merge", "-p", &patch.to_string()]);
    let weekend = json!({"name": "weekend", "timeIntervals": [{"weekdays": ["saturday"]}]});
    let spec =
        json!({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}], "muteTimeIntervals": [weekend]});
    let configuration = json!({"apiVersion": "monitoring.coreos.com/v1alpha1", "kind": "AlertmanagerConfig",
        "metadata": {"name": "mutes"}, "spec": spec});
    admitted(&kubectl, &configuration.to_string());
    // The newer version has another name for the field.
    eventually(PATIENCE, "the configuration is converted", || {
        let converted = kubectl.json(&["alertmanagerconfigs.v1beta1.monitoring.coreos.com", "mutes"])?;
        anyhow::ensure!(converted["spec"]["timeIntervals"][0]["name"] == "weekend", "{converted}");
        Ok(())
    });

    let prometheus = json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus",
        "metadata": {"name": "main"}, "spec": {"serviceAccountName": "default"}});
    kubectl.apply(&prometheus.to_string());
    eventually(PATIENCE, "a StatefulSet and a status are made", || {
        let set = kubectl.json(&["statefulset", "prometheus-main"])?;
        anyhow::ensure!(set["metadata"]["ownerReferences"][0]["kind"] == "Prometheus", "{set}");
        kubectl.try_run(&["wait", "--for=jsonpath={.status.shards}=1", "--timeout=5s", "prometheus/main"])
    });
    // Its scale is the number of shards, each of which has a StatefulSet.
    let _ = kubectl.run(&["scale", "prometheus/main", "--replicas=2"]);
    eventually(PATIENCE, "there is a second shard", || {
        kubectl.try_run(&["get", "statefulset/prometheus-main-shard-1"])
    });
    let _ = kubectl.run(&["delete", "prometheus", "main"]);
}

/// The reason of the condition `Succeeded` of each run, by name.
fn ends_of_runs(kubectl: &Kubectl<'_>) -> anyhow::Result<BTreeMap<String, String>> {
    let runs = kubectl.json(&["taskruns"])?;
    let end = |run: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&run["metadata"]["name"]), text(&run["status"]["conditions"][0]["reason"]))
    };
    Ok(runs["items"].as_array().into_iter().flatten().map(end).collect())
}

/// Its webhooks write defaults, convert and deny in its words, and its own examples run to their ends: pods whose steps wait
/// for each other by files, with sidecars, volumes and results in the termination message.
fn tekton(node: &Node) {
    let kubectl = node.kubectl();
    deploy(&kubectl, "tekton");
    let run = |name: &str, kind: &str, spec: Value| json!({"apiVersion": format!("tekton.dev/{kind}"), "kind": "TaskRun", "metadata": {"name": name}, "spec": spec});
    let step = json!({"name": "one", "image": "judge.test/ubuntu:1", "script": "echo done"});
    admitted(&kubectl, &run("older", "v1beta1", json!({"taskSpec": {"steps": [step]}})).to_string());
    let older = kubectl.json(&["taskruns.v1.tekton.dev", "older"]).expect("the run in the stored version");
    assert_eq!(
        (&older["spec"]["serviceAccountName"], &older["spec"]["timeout"]),
        (&json!("default"), &json!("1h0m0s"))
    );
    denied(
        &kubectl,
        &run("empty", "v1", json!({"taskSpec": {"steps": []}})).to_string(),
        "missing field(s): spec.taskSpec.steps",
    );
    let folder = part("examples").join("tekton");
    let _ = kubectl.run(&["create", "-f", text(&folder)]);
    let mut ends = BTreeMap::new();
    eventually(2 * PATIENCE, "its examples have ended", || {
        ends = ends_of_runs(&kubectl)?;
        anyhow::ensure!(
            ends.values().all(|end| !matches!(end.as_str(), "" | "Pending" | "Running" | "Started")),
            "{ends:?}"
        );
        Ok(())
    });
    assert!(ends.len() > 10 && ends.values().all(|end| end == "Succeeded"), "{ends:?}");
    let _ = kubectl.run(&["delete", "taskruns", "--all"]);
    eventually(PATIENCE, "the pods of the runs are gone", || {
        let pods = kubectl.try_run(&["get", "pods", "-l", "tekton.dev/taskRun", "-o", "name"])?;
        anyhow::ensure!(pods.is_empty(), "{pods}");
        Ok(())
    });
}

/// It lists and watches every type that it knows without an error, and has metrics of them.
fn kube_state_metrics(node: &Node) {
    let kubectl = node.kubectl();
    deploy(&kubectl, "kube-state-metrics");
    let page = |port: &str| {
        kubectl.try_run(&[
            "get",
            "--raw",
            &format!("/api/v1/namespaces/kube-system/services/kube-state-metrics:{port}/proxy/metrics"),
        ])
    };
    eventually(PATIENCE, "there are metrics of the node and of the API's objects", || {
        let metrics = page("http-metrics")?;
        for metric in ["kube_node_info{", "kube_pod_info{", "kube_deployment_created{", "kube_lease_owner{"] {
            anyhow::ensure!(metrics.contains(metric), "no {metric}");
        }
        Ok(())
    });
    let telemetry = page("telemetry").expect("metrics about its own requests");
    let requests = |line: &&str| {
        line.starts_with("kube_state_metrics_list_total") || line.starts_with("kube_state_metrics_watch_total")
    };
    let (failed, done): (Vec<&str>, Vec<&str>) =
        telemetry.lines().filter(requests).partition(|line| line.contains("result=\"error\""));
    let failed: Vec<&str> = failed.into_iter().filter(|line| !line.ends_with(" 0")).collect();
    assert!(failed.is_empty() && done.len() > 20, "{telemetry}");
}

/// It takes `metrics.k8s.io` over from the node's own metrics, scrapes the node's agent, and the group is back when it goes.
fn metrics_server(node: &Node) {
    const SERVICE: &str = "apiservice/v1beta1.metrics.k8s.io";
    let kubectl = node.kubectl();
    let of_the_node = || kubectl.try_run(&["top", "nodes", "--no-headers"]);
    eventually(PATIENCE, "the node's own metrics are served", of_the_node);
    deploy(&kubectl, "metrics-server");
    eventually(PATIENCE, "its APIService is available", || {
        kubectl.try_run(&["wait", "--for=condition=Available", "--timeout=5s", SERVICE])
    });
    // Rates need two scrapes of the agent.
    eventually(PATIENCE, "there is usage of the node and of its pods", || {
        let nodes = of_the_node()?;
        anyhow::ensure!(nodes.lines().count() == 1 && !nodes.contains("<unknown>"), "{nodes}");
        let pods = kubectl.try_run(&["top", "pods", "--namespace=kube-system", "--no-headers"])?;
        anyhow::ensure!(pods.contains("metrics-server"), "{pods}");
        Ok(())
    });
    // The requests were passed on: without an endpoint the group cannot be answered.
    let _ = kubectl.run(&["--namespace=kube-system", "scale", "deployment/metrics-server", "--replicas=0"]);
    eventually(PATIENCE, "nobody answers for the group", || {
        let answered = of_the_node();
        anyhow::ensure!(answered.is_err(), "{answered:?}");
        Ok(())
    });
    let _ = kubectl.run(&["delete", "-f", text(&part("operators").join("metrics-server"))]);
    eventually(PATIENCE, "the node's own metrics are served again", of_the_node);
}
