//! `windlass bundle`: what helps is in it, and no secret is.

use std::os::unix::fs::PermissionsExt as _;

use windlass_tests::{PATIENCE, World, eventually};

const SECRETIVE: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: vault}
stringData: {password: hunter2-secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plain}
data: {key: hunter2-map}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}, annotations: {note: hunter2-note}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: windlass/busybox:1
    command: [sh, -c, "exec sleep 100000 # hunter2-word"]
    env: [{name: PASSWORD, value: hunter2-value}, {name: VAULT, valueFrom: {secretKeyRef: {name: vault, key: password}}}]
"#;

#[test]
fn a_bundle_has_what_helps_and_no_secret() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    kubectl.apply(SECRETIVE);
    eventually(PATIENCE, "the pod runs", || kubectl.ready_pods("app=web", 1));
    let file = world.dir().join("bundle.tar.gz");
    let name = file.display().to_string();
    let kubeconfig = windlass.kubeconfig().display().to_string();
    let told = windlass.try_run("bundle", &["--output", &name, "--kubeconfig", &kubeconfig]).unwrap();
    assert!(told.contains("0 parts that could not be had"), "{told}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let all = world.sh(&format!("tar xzOf {name}"));
    assert!(!all.contains("hunter2"), "a planted secret is in the bundle");
    assert!(!all.contains("PRIVATE KEY") && !all.contains("client-key-data"), "a key is in the bundle");
    for kept in ["KUBE-SERVICES", "kinds of rules are taken", "nodeName: \"node\"", "PASSWORD", "MemTotal", "\"web\""] {
        assert!(all.contains(kept), "{kept} is not in the bundle");
    }
    // It replaces nothing, and does its work without a node too.
    assert!(windlass.try_run("bundle", &["--output", &name]).unwrap_err().to_string().contains(&name));
    windlass.kill();
    let second = world.dir().join("second.tar.gz").display().to_string();
    windlass.try_run("bundle", &["--output", &second, "--kubeconfig", &kubeconfig]).unwrap();
    let problems = world.sh(&format!("tar xzOf {second} windlass-bundle/problems.txt"));
    assert!(problems.contains("usage.json") && problems.contains("objects/pods.json"), "{problems}");
}
