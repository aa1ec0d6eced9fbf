//! Volumes and the ways to mount them.

pub(crate) mod mounts;
pub(crate) mod objects;

use std::{fs, os::unix::fs::FileTypeExt as _, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, eventually, shared_dir::container_status};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    empty_dir_mode,
    empty_dir_outlives_containers,
    empty_dir_is_removed_with_the_pod,
    empty_dir_memory,
    empty_dir_memory_of_the_size_limit,
    empty_dir_memory_of_the_pod_limit,
    host_path_any,
    host_path_directory_or_create,
    host_path_directory,
    host_path_file_or_create,
    host_path_file,
    host_path_socket,
    host_path_char_device,
    host_path_block_device,
    persistent_volume_claim_of_a_host_path,
    persistent_volume_claim_of_a_local_path,
    persistent_volume_claim_missing,
    persistent_volume_claim_read_only_many,
    image_volume,
    image_volume_has_the_content_of_the_image,
    image_volume_never_present,
];

/// A container with volumes at /v/NAME, and its pod's volumes.
fn with(volumes: Value) -> (Value, Value) {
    let mounts: Vec<Value> = volumes
        .as_array()
        .into_iter()
        .flatten()
        .map(|v| json!({"name": v["name"], "mountPath": format!("/v/{}", text(&v["name"]))}))
        .collect();
    (json!({"volumeMounts": mounts}), json!({"volumes": volumes}))
}

/// The output of a line in a container with these volumes.
#[track_caller]
fn say(case: &Case<'_>, line: &str, volumes: Value) -> Vec<String> {
    let (container, spec) = with(volumes);
    case.run("p", line, container, spec)
}

fn stay(case: &Case<'_>, name: &str, line: &str, volumes: Value) {
    let (container, spec) = with(volumes);
    case.shell(name, line, container, spec);
}

fn map(case: &Case<'_>, data: Value) {
    case.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": data})]);
}

fn hidden(case: &Case<'_>, data: Value) {
    case.apply(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": data})]);
}

/// The directory of a pod's volume on the node.
fn on_node(case: &Case<'_>, pod: &Value, plugin: &str, name: &str) -> PathBuf {
    let uid = text(&pod["metadata"]["uid"]);
    case.testbed.dir().join(format!("data/pods/{uid}/volumes/kubernetes.io~{plugin}/{name}"))
}

fn empty_dir_mode(case: &Case<'_>) {
    assert_eq!(say(case, "stat -c %a /v/e", json!([{"name": "e", "emptyDir": {}}])), ["777"]);
}

fn empty_dir_outlives_containers(case: &Case<'_>) {
    let line = "echo run >> /v/e/runs; cp /v/e/runs /shared/runs; exec sleep 100000";
    stay(case, "p", line, json!([{"name": "e", "emptyDir": {}}]));
    case.wait_ready("p");
    let _ = case.testbed.docker(&["kill", &case.ids("p", "main")[0]]);
    case.wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    eventually(DEFAULT_TIMEOUT, "it finds what the first has left", || {
        anyhow::ensure!(case.shared.lines("runs").len() == 2);
        Ok(())
    });
}

fn empty_dir_is_removed_with_the_pod(case: &Case<'_>) {
    stay(case, "p", SLEEP_FOREVER, json!([{"name": "e", "emptyDir": {}}]));
    let pod = case.wait_ready("p");
    let dir = on_node(case, &pod, "empty-dir", "e");
    assert!(dir.is_dir(), "{}", dir.display());
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert!(!dir.exists());
}

fn empty_dir_memory(case: &Case<'_>) {
    let output = say(
        case,
        "stat -c %a /v/m; df /v/m | tail -1 | awk '{print $1}'",
        json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]),
    );
    assert_eq!(output, ["777", "tmpfs"]);
}

const SIZE: &str = "df -k /v/m | tail -1 | awk '{print $2}'";

fn empty_dir_memory_of_the_size_limit(case: &Case<'_>) {
    assert_eq!(say(case, SIZE, json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}])), ["4096"]);
}

fn empty_dir_memory_of_the_pod_limit(case: &Case<'_>) {
    let (mut container, spec) = with(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    container["resources"] = json!({"limits": {"memory": "24Mi"}});
    assert_eq!(case.run("p", SIZE, container, spec), ["24576"]);
}

/// A path of this case on the node, and a hostPath volume of a type at it.
fn host(case: &Case<'_>, name: &str, kind: &str) -> (PathBuf, Value) {
    let path = case.shared.0.join(name);
    let volume = json!([{"name": "h", "hostPath": {"path": path, "type": kind}}]);
    (path, volume)
}

/// A type that does not match the path.
#[track_caller]
fn misfit(case: &Case<'_>, volume: Value) {
    stay(case, "wrong", SLEEP_FOREVER, volume);
    case.wait_for_event("wrong", "FailedMount");
    assert!(case.events("wrong").contains("hostPath type check failed"), "{}", case.events("wrong"));
}

fn host_path_any(case: &Case<'_>) {
    let (path, volume) = host(case, "any", "");
    fs::create_dir(&path).expect("a directory can be created");
    let _ = say(case, "echo x > /v/h/file", volume);
    assert_eq!(fs::read_to_string(path.join("file")).unwrap_or_default(), "x\n");
}

fn host_path_directory_or_create(case: &Case<'_>) {
    let (path, volume) = host(case, "made", "DirectoryOrCreate");
    assert_eq!(say(case, "stat -c '%a %F' /v/h", volume), ["755 directory"]);
    assert!(path.is_dir());
    case.shared.touch("file");
    misfit(case, host(case, "file", "DirectoryOrCreate").1);
}

fn host_path_directory(case: &Case<'_>) {
    let (path, volume) = host(case, "dir", "Directory");
    misfit(case, volume.clone());
    fs::create_dir(path).expect("a directory can be created");
    assert_eq!(say(case, "stat -c %F /v/h", volume), ["directory"]);
}

fn host_path_file_or_create(case: &Case<'_>) {
    let (path, volume) = host(case, "file", "FileOrCreate");
    assert_eq!(say(case, "stat -c '%a %s' /v/h", volume), ["644 0"]);
    assert!(path.is_file());
    misfit(case, json!([{"name": "h", "hostPath": {"path": case.shared.0, "type": "FileOrCreate"}}]));
}

fn host_path_file(case: &Case<'_>) {
    let (path, volume) = host(case, "file", "File");
    misfit(case, volume.clone());
    fs::write(path, "x").expect("a file can be written");
    assert_eq!(say(case, "cat /v/h", volume), ["x"]);
}

fn host_path_socket(case: &Case<'_>) {
    let (path, volume) = host(case, "socket", "Socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket can be made");
    assert_eq!(say(case, "stat -c %F /v/h", volume), ["socket"]);
    drop(listener);
    case.shared.touch("file");
    misfit(case, host(case, "file", "Socket").1);
}

fn host_path_char_device(case: &Case<'_>) {
    let device = |kind: &str| json!([{"name": "h", "hostPath": {"path": "/dev/null", "type": kind}}]);
    assert_eq!(say(case, "stat -c %F /v/h", device("CharDevice")), ["character special file"]);
    misfit(case, device("File"));
}

fn host_path_block_device(case: &Case<'_>) {
    misfit(case, json!([{"name": "h", "hostPath": {"path": "/dev/null", "type": "BlockDevice"}}]));
    // A device that exists on most machines.
    let all = fs::read_dir("/dev").into_iter().flatten().flatten();
    let block = all.map(|e| e.path()).find(|p| fs::metadata(p).is_ok_and(|m| m.file_type().is_block_device()));
    if let Some(path) = block {
        let volume = json!([{"name": "h", "hostPath": {"path": path, "type": "BlockDevice"}}]);
        assert_eq!(say(case, "stat -c %F /v/h", volume), ["block special file"]);
    }
}

#[track_caller]
fn waits(case: &Case<'_>, volume: Value, words: &str, come: impl FnOnce()) {
    stay(case, "p", SLEEP_FOREVER, volume);
    case.wait_for_event("p", "FailedMount");
    assert!(case.events("p").contains(words), "{}", case.events("p"));
    case.wait_waiting("p", "ContainerCreating");
    come();
    case.wait_ready("p");
}

/// A claim of this case, bound to a new volume.
fn claim(case: &Case<'_>, spec: Value, mode: &str) -> Value {
    let name = case.namespace.clone();
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec});
    volume["spec"]["capacity"] = json!({"storage": "1Gi"});
    volume["spec"]["accessModes"] = json!([mode]);
    volume["spec"]["claimRef"] = json!({"namespace": name, "name": "claim"});
    case.apply(&[
        volume,
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}}),
    ]);
    json!([{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}])
}

/// Deletes a claim and its volume, which outlives the namespace.
fn unclaim(case: &Case<'_>) {
    let _ = case.kubectl(&["delete", "pod", "--all"]);
    let _ = case.kubectl(&["delete", "pvc", "claim"]);
    let _ = case.kubectl(&["delete", "pv", &case.namespace]);
}

fn persistent_volume_claim_of_a_host_path(case: &Case<'_>) {
    let data = case.shared.0.join("data");
    let volume = claim(case, json!({"hostPath": {"path": data}}), "ReadWriteOnce");
    let _ = say(case, "echo kept > /v/d/file", volume);
    assert_eq!(fs::read_to_string(data.join("file")).unwrap_or_default(), "kept\n");
    unclaim(case);
    assert!(data.join("file").exists());
}

fn local(case: &Case<'_>) -> Value {
    let data = case.shared.0.join("data");
    fs::create_dir_all(&data).expect("a directory can be created");
    json!({"local": {"path": data}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}}})
}

fn persistent_volume_claim_of_a_local_path(case: &Case<'_>) {
    let volume = claim(case, local(case), "ReadWriteOnce");
    let _ = say(case, "echo kept > /v/d/file", volume);
    assert!(case.shared.0.join("data/file").exists());
    unclaim(case);
}

fn persistent_volume_claim_missing(case: &Case<'_>) {
    stay(case, "p", SLEEP_FOREVER, json!([{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}]));
    case.wait_for_event("p", "persistentvolumeclaim \"claim\" not found");
    let _ = claim(case, local(case), "ReadWriteOnce");
    case.wait_ready("p");
    unclaim(case);
}

fn persistent_volume_claim_read_only_many(case: &Case<'_>) {
    let volume = claim(case, local(case), "ReadOnlyMany");
    assert_eq!(say(case, "touch /v/d/file 2>/dev/null || echo read-only", volume), ["read-only"]);
    unclaim(case);
}

fn image_volume(case: &Case<'_>) {
    let volume = json!([{"name": "i", "image": {"reference": "windlass/busybox:1", "pullPolicy": "Never"}}]);
    let line = "ls /v/i/bin/sh; touch /v/i/x 2>/dev/null || echo read-only";
    assert_eq!(say(case, line, volume), ["/v/i/bin/sh", "read-only"]);
}

fn image_volume_has_the_content_of_the_image(case: &Case<'_>) {
    // An artifact: it contains nothing of what Docker adds to every container.
    let dir = case.shared.0.join("artifact");
    for folder in ["model/dev", "etc"] {
        fs::create_dir_all(dir.join(folder)).expect("a directory can be created");
    }
    for file in ["model/weights", "model/dev/notes", "etc/model.conf"] {
        fs::write(dir.join(file), "x").expect("a file can be written");
    }
    fs::write(dir.join("Dockerfile"), "FROM scratch\nCOPY model /model\nCOPY etc /etc\n")
        .expect("a file can be written");
    let _ = case.testbed.docker(&["build", "-q", "-t", "windlass/artifact:1", &dir.to_string_lossy()]);
    let volume = json!([{"name": "i", "image": {"reference": "windlass/artifact:1", "pullPolicy": "Never"}}]);
    let output = say(case, "cd /v/i; find . | sort", volume);
    assert_eq!(
        output,
        [".", "./etc", "./etc/model.conf", "./model", "./model/dev", "./model/dev/notes", "./model/weights"]
    );
}

fn image_volume_never_present(case: &Case<'_>) {
    stay(
        case,
        "p",
        SLEEP_FOREVER,
        json!([{"name": "i", "image": {"reference": "windlass/none:1", "pullPolicy": "Never"}}]),
    );
    case.wait_for_event("p", "is not present with pull policy of Never");
}
