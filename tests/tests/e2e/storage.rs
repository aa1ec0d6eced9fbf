//! Persistent volumes, token volumes, and subpaths.

use std::fs;

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, LentNode, Testbed, eventually};

use crate::shared_dir::{SharedDir, is_ready, shell, wait_for, wait_for_event};

fn volume(name: &str, spec: Value) -> String {
    let mut all = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
    for (key, value) in spec.as_object().expect("a spec is an object") {
        all[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": all}).to_string()
}

/// A claim for a volume that somebody has made.
fn claim(name: &str) -> String {
    claim_of_class(name, Some(""))
}

fn claim_of_class(name: &str, class: Option<&str>) -> String {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    .to_string()
}

#[test]
fn persistent_volume_claims() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let data = testbed.dir().join("data-of-a-volume");
    let uses = |name: &str, claim: &str, line: &str| {
        shared.pod(name, json!({
            "containers": [{"name": "main", "command": shell(line), "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]}))
    };
    // A pod waits for its claim, and its claim for a volume.
    kubectl.apply(&uses("first", "kept", "echo kept > /d/x; exec sleep 1000"));
    wait_for_event(&kubectl, "first", "persistentvolumeclaim \"kept\" not found");
    kubectl.apply(&claim("kept"));
    wait_for_event(&kubectl, "kept", "FailedBinding");
    kubectl.apply(&volume("v1", json!({"hostPath": {"path": data}})));
    wait_for(&kubectl, "first", "is ready", is_ready);
    let phase = |kind: &str, name: &str| kubectl.run(&["get", kind, name, "-o", "jsonpath={.status.phase}"]);
    assert_eq!((phase("pv", "v1").as_str(), phase("pvc", "kept").as_str()), ("Bound", "Bound"));
    let shown = kubectl.run(&["get", "pv,pvc"]);
    assert!(shown.contains("default/kept") && shown.contains("RWO"), "{shown}");

    // A claim in use is protected from deletion.
    let _ = kubectl.run(&["delete", "pvc", "kept", "--wait=false"]);
    let _ = kubectl.run(&["delete", "pv", "v1", "--wait=false"]);
    assert!(kubectl.run(&["get", "pvc", "kept"]).contains("Terminating"));
    let _ = kubectl.run(&["delete", "pod", "first"]);
    for kind in ["pvc/kept", "pv/v1"] {
        let _ = kubectl.run(&["wait", "--for=delete", kind, "--timeout=20s"]);
    }
    assert_eq!(fs::read_to_string(data.join("x")).unwrap(), "kept\n", "the data stays");

    // A local volume for this node, and one for another.
    let affine = |name: &str| {
        json!({"local": {"path": data}, "claimRef": {"namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}}})
    };
    for name in ["node", "elsewhere"] {
        kubectl.apply(&volume(&format!("local-{name}"), affine(name)));
        kubectl.apply(&claim(name));
        kubectl.apply(&uses(&format!("uses-{name}"), name, "cat /d/x; exec sleep 1000"));
    }
    wait_for(&kubectl, "uses-node", "is ready", is_ready);
    wait_for_event(&kubectl, "uses-elsewhere", "1 node(s) didn't match PersistentVolume's node affinity");

    // Permissions that an application has set are kept when the agent restarts.
    let _ = kubectl.run(&["delete", "pod", "uses-node"]);
    let line = "stat -c %a /e /d > /shared/.modes; mv /shared/.modes /shared/modes; chmod 0700 /e /d; exec sleep 1000";
    kubectl.apply(&shared.pod(
        "owner",
        json!({
        "securityContext": {"fsGroup": 4000},
        "containers": [{"name": "main", "command": shell(line),
            "volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "d", "mountPath": "/d"}]}],
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "node"}}]}),
    ));
    let owner = wait_for(&kubectl, "owner", "is ready", is_ready);
    let modes = || {
        eventually(DEFAULT_TIMEOUT, "the modes are told", || {
            anyhow::ensure!(shared.0.join("modes").exists());
            Ok(shared.lines("modes"))
        })
    };
    assert!(modes().iter().all(|m| m.starts_with('2')), "the group has them at first: {:?}", modes());
    windlass.kill();
    shared.remove("modes");
    let _ = windlass.up();
    testbed.docker(&["kill", &crate::container_id(&owner)]);
    assert_eq!(modes(), ["700", "700"]);

    // An ephemeral volume, deleted with its pod.
    kubectl.apply(&volume("v2", json!({"hostPath": {"path": testbed.dir().join("brief")}})));
    kubectl.apply(&shared.pod("brief", json!({
        "containers": [{"name": "main", "command": shell("exec sleep 1000"), "volumeMounts": [{"name": "e", "mountPath": "/e"}]}],
        "volumes": [{"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}}}}}}]})));
    wait_for(&kubectl, "brief", "is ready", is_ready);
    let _ = kubectl.run(&["delete", "pod", "brief"]);
    let _ = kubectl.run(&["wait", "--for=delete", "pvc/brief-e", "--timeout=20s"]);
}

/// A loop device that is backed by a file.
struct Loop(String);

impl Loop {
    fn new(testbed: &Testbed) -> Self {
        let file = testbed.dir().join("disk");
        fs::File::create(&file).and_then(|f| f.set_len(1 << 20)).expect("a file can be made");
        Self(windlass_tests::run("losetup", &["-f", "--show", &file.to_string_lossy()]).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = windlass_tests::try_run("losetup", &["-d", &self.0]);
    }
}

#[test]
fn block_volumes() {
    let testbed = Testbed::new();
    let device = Loop::new(&testbed);
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let on_node = json!({"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}});
    // A directory does not match a claim for a block device, although it comes first.
    kubectl.apply(&volume("folder", json!({"hostPath": {"path": testbed.dir().join("folder")}})));
    kubectl.apply(&volume("raw", json!({"volumeMode": "Block", "local": {"path": device.0}, "nodeAffinity": on_node})));
    let mut raw: Value = serde_json::from_str(&claim("raw")).unwrap();
    raw["spec"]["volumeMode"] = json!("Block");
    kubectl.apply(&raw.to_string());
    let uses = |name: &str, how: Value| {
        let mut main = how;
        main["name"] = json!("main");
        main["command"] = shell("echo written > /dev/disk; exec sleep 1000");
        shared.pod(
            name,
            json!({"containers": [main],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "raw"}}]}),
        )
    };
    kubectl.apply(&uses("p", json!({"volumeDevices": [{"name": "d", "devicePath": "/dev/disk"}]})));
    wait_for(&kubectl, "p", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the device has what the pod wrote", || {
        let mut begin = [0; 8];
        fs::File::open(&device.0).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut begin))?;
        anyhow::ensure!(&begin == b"written\n", "{begin:?}");
        Ok(())
    });
    kubectl.apply(&uses("wrong", json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]})));
    let pod = wait_for(&kubectl, "wrong", "is kept from running", |p| {
        crate::shared_dir::container_status(p)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    assert!(pod["status"].to_string().contains("it belongs into volumeDevices"), "{pod}");
    let _ = kubectl.run(&["delete", "pod", "p", "wrong"]);
}

/// The default class, the directory of a claim over pods, and its end.
#[test]
fn volumes_on_demand() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let storage = testbed.dir().join("data/storage");
    let uses = |name: &str, line: &str| {
        shared.pod(name, json!({
            "containers": [{"name": "main", "command": shell(line), "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}))
    };
    kubectl.apply(&claim_of_class("data", None));
    wait_for_event(&kubectl, "data", "waiting for first consumer to be created before binding");
    let class = kubectl.run(&["get", "pvc", "data", "-o", "jsonpath={.spec.storageClassName}"]);
    assert_eq!(class, "local-path");
    kubectl.apply(&uses("first", "echo kept > /d/x; exec sleep 1000"));
    wait_for(&kubectl, "first", "is ready", is_ready);
    wait_for_event(&kubectl, "data", "Successfully provisioned volume pvc-");
    let volume = kubectl.run(&["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]);
    let dir = storage.join(format!("{volume}_default_data"));
    eventually(DEFAULT_TIMEOUT, "the pod has written", || {
        anyhow::ensure!(fs::read_to_string(dir.join("x"))? == "kept\n");
        Ok(())
    });
    // The next pod, after a kill of the node, finds what the first has left.
    let _ = kubectl.run(&["delete", "pod", "first"]);
    windlass.kill();
    let _ = windlass.up();
    kubectl.apply(&uses("second", "cat /d/x > /shared/found; exec sleep 1000"));
    wait_for(&kubectl, "second", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the pod has read", || {
        anyhow::ensure!(shared.lines("found") == ["kept"], "{:?}", shared.lines("found"));
        Ok(())
    });
    let _ = kubectl.run(&["delete", "pvc", "data", "--wait=false"]);
    assert!(dir.exists(), "while a pod has it");
    let _ = kubectl.run(&["delete", "pod", "second"]);
    let _ = kubectl.run(&["wait", "--for=delete", &format!("pv/{volume}"), "--timeout=20s"]);
    assert!(storage.exists() && !dir.exists());
}

#[test]
fn service_account_tokens() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    let output =
        format!("cat {dir}/token > /shared/token; cat {dir}/namespace {dir}/ca.crt > /shared/rest; exec sleep 1000");
    kubectl.apply(&shared.pod(
        "p",
        json!({
        "containers": [{"name": "main", "command": shell(&output),
            "volumeMounts": [{"name": "own", "mountPath": "/own"}]}],
        "volumes": [{"name": "own", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}]}}]}),
    ));
    wait_for(&kubectl, "p", "is ready", is_ready);
    let token = eventually(DEFAULT_TIMEOUT, "the pod has its token", || {
        let lines = shared.lines("token");
        anyhow::ensure!(lines.len() == 1 && shared.lines("rest").len() > 3, "{lines:?}");
        Ok(lines[0].clone())
    });
    assert!(shared.lines("rest")[0].starts_with("default-----BEGIN CERTIFICATE"));
    let review = |token: &str, audiences: Value| -> Value {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences}});
        let out = kubectl.output(
            &["create", "--raw", "/apis/authentication.k8s.io/v1/tokenreviews", "-f", "-"],
            &review.to_string(),
        );
        serde_json::from_slice::<Value>(out.out.as_bytes()).unwrap()["status"].clone()
    };
    let output = review(&token, json!([]));
    assert_eq!(output["user"]["username"], "system:serviceaccount:default:default", "{output}");
    assert_ne!(review(&token, json!(["vault"]))["authenticated"], true, "false may be left out");
    // The API authenticates the caller, who sees only what RBAC allows.
    let server = kubectl.run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    let asked = testbed.sh(&format!("curl -sk -H 'Authorization: Bearer {token}' {}/api/v1/pods", server.trim()));
    assert!(asked.contains("system:serviceaccount:default:default") && asked.contains("Forbidden"), "{asked}");
    let forged = testbed.sh(&format!("curl -sk -H 'Authorization: Bearer {token}x' {}/api/v1/pods", server.trim()));
    assert!(forged.contains("Unauthorized"), "{forged}");
    // The token ends with its pod.
    let _ = kubectl.run(&["delete", "pod", "p"]);
    // kube-apiserver remembers for 10 s whom it has known, and leaves false out.
    eventually(DEFAULT_TIMEOUT, "the token ends with its pod", || {
        let again = review(&token, json!([]));
        anyhow::ensure!(again["authenticated"] != true, "{again}");
        Ok(())
    });

    let made = kubectl.run(&["create", "token", "default", "--duration=10m"]);
    assert_eq!(review(made.trim(), json!([]))["authenticated"], true);
    kubectl.apply(&shared.pod(
        "none",
        json!({"automountServiceAccountToken": false,
        "containers": [{"name": "main", "command": shell(&format!("ls {dir} > /shared/none 2>&1; exec sleep 1000"))}]}),
    ));
    wait_for(&kubectl, "none", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the pod has looked", || {
        anyhow::ensure!(shared.lines("none").concat().contains("No such file"), "{:?}", shared.lines("none"));
        Ok(())
    });
}

#[test]
fn sub_paths() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let data = testbed.dir().join("volume");
    fs::create_dir_all(&data).unwrap();
    std::os::unix::fs::symlink("/etc", data.join("out")).unwrap();
    let with = |name: &str, mount: Value, line: &str| {
        let mut mount = mount;
        mount["name"] = json!("d");
        mount["mountPath"] = json!("/d");
        shared.pod(
            name,
            json!({
            "containers": [{"name": "main", "command": shell(line), "volumeMounts": [mount],
                "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
            "volumes": [{"name": "d", "hostPath": {"path": data}}]}),
        )
    };
    kubectl.apply(&with("plain", json!({"subPath": "a/b"}), "echo plain > /d/x; exec sleep 1000"));
    kubectl.apply(&with("named", json!({"subPathExpr": "of/$(POD)"}), "echo named > /d/x; exec sleep 1000"));
    for name in ["plain", "named"] {
        wait_for(&kubectl, name, "is ready", is_ready);
    }
    eventually(DEFAULT_TIMEOUT, "both have written", || {
        for (path, text) in [("a/b/x", "plain\n"), ("of/named/x", "named\n")] {
            let there = fs::read_to_string(data.join(path)).unwrap_or_default();
            anyhow::ensure!(there == text, "{path}: {there:?}");
        }
        Ok(())
    });
    // A symbolic link that leads outside is rejected, and nothing outside is touched.
    kubectl.apply(&with("thief", json!({"subPath": "out"}), "exec sleep 1000"));
    wait_for_event(&kubectl, "thief", "leads out of its volume");
    // Read-only is recursive where requested.
    let below = testbed.dir().join("volume/below");
    fs::create_dir_all(&below).unwrap();
    let _ = testbed.sh(&format!("mount -t tmpfs none {}", below.display()));
    let line = "touch /d/below/x && echo written > /shared/deep || echo refused > /shared/deep; exec sleep 1000";
    kubectl.apply(&with("deep", json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), line));
    wait_for(&kubectl, "deep", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "it has tried to write", || {
        anyhow::ensure!(shared.lines("deep") == ["refused"], "{:?}", shared.lines("deep"));
        Ok(())
    });
    let _ = kubectl.run(&["delete", "pod", "plain", "named", "thief", "deep"]);
    eventually(DEFAULT_TIMEOUT, "nothing is mounted any more", || {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let ours = testbed.dir().join("data/pods");
        let left: Vec<&str> = mounts.lines().filter(|l| l.contains(&*ours.to_string_lossy())).collect();
        anyhow::ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    let _ = testbed.sh(&format!("umount {}", below.display()));
    assert!(data.join("a/b/x").exists() && data.join("out").is_symlink(), "the volume itself is as it was");
}

#[test]
fn image_volumes() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let line = "ls /image/bin /part > /shared/there; touch /image/x 2>/dev/null || echo read-only >> /shared/there; exec sleep 1000";
    let pod = |name: &str, reference: &str| {
        shared.pod(
            name,
            json!({
            "containers": [{"name": "main", "command": shell(line), "volumeMounts": [
                {"name": "i", "mountPath": "/image"}, {"name": "i", "mountPath": "/part", "subPath": "bin"}]}],
            "volumes": [{"name": "i", "image": {"reference": reference, "pullPolicy": "Never"}}]}),
        )
    };
    kubectl.apply(&pod("shown", "windlass/busybox:1"));
    wait_for(&kubectl, "shown", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the pod has looked", || {
        let lines = shared.lines("there");
        let tools = lines.iter().filter(|l| *l == "sh").count();
        anyhow::ensure!(tools == 2 && lines.last().is_some_and(|l| l == "read-only"), "{lines:?}");
        Ok(())
    });
    kubectl.apply(&pod("missing", "windlass/none:1"));
    wait_for_event(&kubectl, "missing", "is not present with pull policy of Never");
    let _ = kubectl.run(&["delete", "pod", "shown", "missing"]);
    let left = testbed.docker(&["ps", "-aq", "--filter", "name=windlass-image"]);
    assert!(left.trim().is_empty(), "{left}");
}
