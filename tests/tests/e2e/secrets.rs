//! Secrets do not leak: values are planted wherever users put theirs, a node at debug level uses them, and everything
//! that it prints, serves without credentials or bundles is searched for them.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};

use crate::shared_dir::is_ready;

/// The marker in every planted value, and in no name.
const PLANTED: &str = "hunter2";

const PODS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: plain}
data: {key: hunter2-map}
---
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {note: hunter2-note}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: windlass/busybox:1
    command: [sh, -c, "echo begun; exec sleep 100000 # hunter2-word"]
    env:
    - {name: PASSWORD, value: hunter2-value}
    - {name: VAULT, valueFrom: {secretKeyRef: {name: vault, key: password}}}
    - {name: MAP, valueFrom: {configMapKeyRef: {name: plain, key: key}}}
    readinessProbe: {exec: {command: [sh, -c, "test hunter2-probe"]}, periodSeconds: 1}
    livenessProbe: {exec: {command: [sh, -c, "test -n hunter2-liveness"]}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: [sh, -c, "true hunter2-hook"]}}}
    volumeMounts: [{name: vault, mountPath: /vault}]
  volumes: [{name: vault, secret: {secretName: vault}}]
---
apiVersion: v1
kind: Pod
metadata: {name: unpulled}
spec:
  terminationGracePeriodSeconds: 1
  imagePullSecrets: [{name: registry}]
  containers: [{name: main, image: "127.0.0.1:5001/private/none:1", env: [{name: PASSWORD, value: hunter2-unpulled}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: fails}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: windlass/busybox:1, command: [/no-such-program, hunter2-word], env: [{name: A, value: hunter2-fails}]}]
"#;

fn secret(name: &str, kind: &str, data: serde_json::Value) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data})
        .to_string()
}

#[test]
fn secrets_appear_in_no_log_or_process() {
    let testbed = Testbed::new();
    let windlass = testbed.windlass();
    let log = testbed.dir().join("windlass.log");
    let mut command = windlass.command("up");
    command.env("WINDLASS_LOG", "debug");
    let mut node = Daemon::start("windlass up", &mut command, &log).expect("windlass up");
    let kubectl = windlass.kubectl();
    let auth = BASE64_STANDARD.encode("robot:hunter2-registry");
    let credentials =
        json!({"auths": {"127.0.0.1:5001": {"username": "robot", "password": "hunter2-registry", "auth": auth}}});
    eventually(DEFAULT_TIMEOUT, "the API takes objects", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        let given =
            kubectl.output(&["apply", "-f", "-"], &secret("vault", "Opaque", json!({"password": "hunter2-object"})));
        anyhow::ensure!(given.ok, "{}", given.err);
        Ok(())
    });
    let kind = "kubernetes.io/dockerconfigjson";
    kubectl.apply(&secret("registry", kind, json!({".dockerconfigjson": credentials.to_string()})));
    kubectl.apply(PODS);
    eventually(DEFAULT_TIMEOUT, "the pod is ready", || {
        let pod = kubectl.json(&["pod", "web"])?;
        anyhow::ensure!(is_ready(&pod), "{}", pod["status"]);
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "the pull and the start have failed", || {
        let pods = kubectl.try_run(&["get", "pods", "--no-headers"])?;
        anyhow::ensure!(
            pods.contains("Pull") && pods.lines().any(|l| l.starts_with("fails") && !l.contains("Creating")),
            "{pods}"
        );
        Ok(())
    });
    let seen = kubectl.run(&["exec", "web", "--", "sh", "-c", "cat /vault/password; env; true hunter2-exec"]);
    assert!(seen.contains("hunter2-object") && seen.contains("hunter2-value"), "the values are there: {seen}");
    let account = kubectl.run(&["exec", "web", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"]);
    let token = kubectl.run(&["create", "token", "default"]);
    let _ = kubectl.run(&["logs", "web"]);
    let _ = kubectl.output(&["exec", "web", "--", "/no-program", "hunter2-failed-exec"], "");
    let _ = kubectl.output(&["set", "env", "pod/web", "LATE=hunter2-late"], "");
    // An anonymous client, an authenticated one, and an authorized one.
    for (bearer, port) in
        [("hunter2-bearer", 6443), ("hunter2-bearer", 10250), (token.trim(), 6443), (token.trim(), 10250)]
    {
        let _ = testbed.try_sh(&format!(
            "curl -sk --max-time 5 -H 'Authorization: Bearer {bearer}' 'https://127.0.0.1:{port}/api/v1/pods?token={bearer}'"
        ));
    }
    // Usage is requested twice, so that rates exist.
    std::thread::sleep(Duration::from_secs(2));

    let mut output = vec![("its log".to_owned(), node.log())];
    let file = testbed.dir().join("bundle.tar.gz").display().to_string();
    let kubeconfig = windlass.kubeconfig().display().to_string();
    let printed = windlass.try_run("bundle", &["--output", &file, "--kubeconfig", &kubeconfig]).expect("a bundle");
    output.push(("what bundle says".to_owned(), printed));
    output.push(("the bundle".to_owned(), testbed.sh(&format!("tar xzOf {file}"))));
    let uid =
        kubectl.json(&["pod", "web"]).expect("it is there")["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let history = format!("windlass/history/pods/{uid}");
    for (port, path) in [
        (10255, "metrics"),
        (10255, "metrics/cadvisor"),
        (10255, "metrics/resource"),
        (10255, "metrics/probes"),
        (10255, "stats/summary"),
        (10255, "windlass/usage"),
        (10255, "windlass/pulls"),
        (10255, "windlass/history/node"),
        (10255, &history),
        (10255, "pods"),
        (10255, "api/v2.1/stats?recursive=true"),
        (10255, "api/v1.3/docker/"),
        (10255, ""),
        (10248, "healthz?verbose"),
        (10249, "metrics"),
        (10249, "configz"),
        (10256, "healthz"),
    ] {
        let page =
            testbed.try_sh(&format!("curl -s --max-time 20 'http://127.0.0.1:{port}/{path}'")).unwrap_or_default();
        output.push((format!(":{port}/{path}"), page));
    }
    for command in ["status", "top"] {
        let args: &[&str] = if command == "top" { &["containers", "--once"] } else { &[] };
        output.push((command.to_owned(), windlass.try_run(command, args).unwrap_or_else(|error| error.to_string())));
    }
    assert!(output[0].1.contains("DEBUG"), "it is at debug level");
    assert!(output.iter().filter(|(_, text)| text.contains("web")).count() >= 5, "what is searched tells of the pod");
    let mut planted = vec![PLANTED.to_owned(), auth, account.trim().to_owned(), token.trim().to_owned()];
    planted.extend(["PRIVATE KEY", "client-key-data"].map(str::to_owned));
    planted.extend(["hunter2-object", "hunter2-registry", "hunter2-map"].map(|value| BASE64_STANDARD.encode(value)));
    for secret in planted {
        for (place, text) in &output {
            if let Some(at) = text.find(&secret) {
                let around: String = text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
                panic!("{place} tells {}…: {around}", &secret[..7]);
            }
        }
    }
}
