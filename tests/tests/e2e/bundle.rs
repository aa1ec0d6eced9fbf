//! `windlass bundle`: the content of the archive. `secrets.rs` checks that it contains no secret.

use std::os::unix::fs::PermissionsExt as _;

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "windlass/busybox:1", command: [sleep, "100000"], env: [{name: PASSWORD, value: none}]}
"#;

#[test]
fn a_support_bundle_is_complete() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(POD);
    eventually(DEFAULT_TIMEOUT, "the pod runs", || kubectl.ready_pods("app=web", 1));
    let file = testbed.dir().join("bundle.tar.gz");
    let name = file.display().to_string();
    let kubeconfig = windlass.kubeconfig().display().to_string();
    let output = windlass.try_run("bundle", &["--output", &name, "--kubeconfig", &kubeconfig]).unwrap();
    assert!(output.contains("0 failed parts"), "{output}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let all = testbed.sh(&format!("tar xzOf {name}"));
    for kept in ["KUBE-SERVICES", "kinds of rules are taken", "nodeName: \"node\"", "PASSWORD", "MemTotal", "\"web\""] {
        assert!(all.contains(kept), "{kept} is not in the bundle");
    }
    // It overwrites no file, and works without a node too.
    assert!(windlass.try_run("bundle", &["--output", &name]).unwrap_err().to_string().contains(&name));
    windlass.kill();
    let second = testbed.dir().join("second.tar.gz").display().to_string();
    windlass.try_run("bundle", &["--output", &second, "--kubeconfig", &kubeconfig]).unwrap();
    let problems = testbed.sh(&format!("tar xzOf {second} windlass-bundle/problems.txt"));
    assert!(problems.contains("usage.json") && problems.contains("objects/pods.json"), "{problems}");
}
