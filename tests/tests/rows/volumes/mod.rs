//! Volumes and the ways to mount them.

pub(crate) mod mounts;
pub(crate) mod objects;

use std::{fs, os::unix::fs::FileTypeExt as _, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{PATIENCE, eventually, sharing::main_of};

use crate::row::{Row, STAY, text};

crate::rows![
    empty_dir_mode,
    empty_dir_outlives_containers,
    empty_dir_goes_with_the_pod,
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
    image_volume_shows_what_the_image_has,
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

/// What a line prints in a container with these volumes.
#[track_caller]
fn say(row: &Row<'_>, line: &str, volumes: Value) -> Vec<String> {
    let (container, spec) = with(volumes);
    row.run("p", line, container, spec)
}

fn stay(row: &Row<'_>, name: &str, line: &str, volumes: Value) {
    let (container, spec) = with(volumes);
    row.shell(name, line, container, spec);
}

fn map(row: &Row<'_>, data: Value) {
    row.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": data})]);
}

fn hidden(row: &Row<'_>, data: Value) {
    row.apply(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": data})]);
}

/// The folder of a pod's volume on the node.
fn on_node(row: &Row<'_>, pod: &Value, plugin: &str, name: &str) -> PathBuf {
    let uid = text(&pod["metadata"]["uid"]);
    row.world.dir().join(format!("data/pods/{uid}/volumes/kubernetes.io~{plugin}/{name}"))
}

fn empty_dir_mode(row: &Row<'_>) {
    assert_eq!(say(row, "stat -c %a /v/e", json!([{"name": "e", "emptyDir": {}}])), ["777"]);
}

fn empty_dir_outlives_containers(row: &Row<'_>) {
    let line = "echo run >> /v/e/runs; cp /v/e/runs /shared/runs; exec sleep 100000";
    stay(row, "p", line, json!([{"name": "e", "emptyDir": {}}]));
    row.ready("p");
    let _ = row.world.docker(&["kill", &row.ids("p", "main")[0]]);
    row.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    eventually(PATIENCE, "it finds what the first has left", || {
        anyhow::ensure!(row.shared.lines("runs").len() == 2);
        Ok(())
    });
}

fn empty_dir_goes_with_the_pod(row: &Row<'_>) {
    stay(row, "p", STAY, json!([{"name": "e", "emptyDir": {}}]));
    let pod = row.ready("p");
    let dir = on_node(row, &pod, "empty-dir", "e");
    assert!(dir.is_dir(), "{}", dir.display());
    let _ = row.kubectl(&["delete", "pod", "p"]);
    assert!(!dir.exists());
}

fn empty_dir_memory(row: &Row<'_>) {
    let told = say(
        row,
        "stat -c %a /v/m; df /v/m | tail -1 | awk '{print $1}'",
        json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]),
    );
    assert_eq!(told, ["777", "tmpfs"]);
}

const SIZE: &str = "df -k /v/m | tail -1 | awk '{print $2}'";

fn empty_dir_memory_of_the_size_limit(row: &Row<'_>) {
    assert_eq!(say(row, SIZE, json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}])), ["4096"]);
}

fn empty_dir_memory_of_the_pod_limit(row: &Row<'_>) {
    let (mut container, spec) = with(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    container["resources"] = json!({"limits": {"memory": "24Mi"}});
    assert_eq!(row.run("p", SIZE, container, spec), ["24576"]);
}

/// A path of this row on the node, and the volume of one type at it.
fn host(row: &Row<'_>, name: &str, kind: &str) -> (PathBuf, Value) {
    let path = row.shared.0.join(name);
    let volume = json!([{"name": "h", "hostPath": {"path": path, "type": kind}}]);
    (path, volume)
}

/// A type that does not fit what is at the path.
#[track_caller]
fn misfit(row: &Row<'_>, volume: Value) {
    stay(row, "wrong", STAY, volume);
    row.says("wrong", "FailedMount");
    assert!(row.events("wrong").contains("hostPath type check failed"), "{}", row.events("wrong"));
}

fn host_path_any(row: &Row<'_>) {
    let (path, volume) = host(row, "any", "");
    fs::create_dir(&path).expect("a folder can be made");
    let _ = say(row, "echo x > /v/h/file", volume);
    assert_eq!(fs::read_to_string(path.join("file")).unwrap_or_default(), "x\n");
}

fn host_path_directory_or_create(row: &Row<'_>) {
    let (path, volume) = host(row, "made", "DirectoryOrCreate");
    assert_eq!(say(row, "stat -c '%a %F' /v/h", volume), ["755 directory"]);
    assert!(path.is_dir());
    row.shared.put("file");
    misfit(row, host(row, "file", "DirectoryOrCreate").1);
}

fn host_path_directory(row: &Row<'_>) {
    let (path, volume) = host(row, "dir", "Directory");
    misfit(row, volume.clone());
    fs::create_dir(path).expect("a folder can be made");
    assert_eq!(say(row, "stat -c %F /v/h", volume), ["directory"]);
}

fn host_path_file_or_create(row: &Row<'_>) {
    let (path, volume) = host(row, "file", "FileOrCreate");
    assert_eq!(say(row, "stat -c '%a %s' /v/h", volume), ["644 0"]);
    assert!(path.is_file());
    misfit(row, json!([{"name": "h", "hostPath": {"path": row.shared.0, "type": "FileOrCreate"}}]));
}

fn host_path_file(row: &Row<'_>) {
    let (path, volume) = host(row, "file", "File");
    misfit(row, volume.clone());
    fs::write(path, "x").expect("a file can be written");
    assert_eq!(say(row, "cat /v/h", volume), ["x"]);
}

fn host_path_socket(row: &Row<'_>) {
    let (path, volume) = host(row, "socket", "Socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket can be made");
    assert_eq!(say(row, "stat -c %F /v/h", volume), ["socket"]);
    drop(listener);
    row.shared.put("file");
    misfit(row, host(row, "file", "Socket").1);
}

fn host_path_char_device(row: &Row<'_>) {
    let device = |kind: &str| json!([{"name": "h", "hostPath": {"path": "/dev/null", "type": kind}}]);
    assert_eq!(say(row, "stat -c %F /v/h", device("CharDevice")), ["character special file"]);
    misfit(row, device("File"));
}

fn host_path_block_device(row: &Row<'_>) {
    misfit(row, json!([{"name": "h", "hostPath": {"path": "/dev/null", "type": "BlockDevice"}}]));
    // One that exists somewhere on most machines.
    let all = fs::read_dir("/dev").into_iter().flatten().flatten();
    let block = all.map(|e| e.path()).find(|p| fs::metadata(p).is_ok_and(|m| m.file_type().is_block_device()));
    if let Some(path) = block {
        let volume = json!([{"name": "h", "hostPath": {"path": path, "type": "BlockDevice"}}]);
        assert_eq!(say(row, "stat -c %F /v/h", volume), ["block special file"]);
    }
}

#[track_caller]
fn waits(row: &Row<'_>, volume: Value, words: &str, come: impl FnOnce()) {
    stay(row, "p", STAY, volume);
    row.says("p", "FailedMount");
    assert!(row.events("p").contains(words), "{}", row.events("p"));
    row.waiting("p", "ContainerCreating");
    come();
    row.ready("p");
}

/// A claim of this row, bound to a volume made for it.
fn claim(row: &Row<'_>, spec: Value, mode: &str) -> Value {
    let name = row.namespace.clone();
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec});
    volume["spec"]["capacity"] = json!({"storage": "1Gi"});
    volume["spec"]["accessModes"] = json!([mode]);
    volume["spec"]["claimRef"] = json!({"namespace": name, "name": "claim"});
    row.apply(&[
        volume,
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}}),
    ]);
    json!([{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}])
}

/// Takes a claim and its volume away, which no namespace does.
fn unclaim(row: &Row<'_>) {
    let _ = row.kubectl(&["delete", "pod", "--all"]);
    let _ = row.kubectl(&["delete", "pvc", "claim"]);
    let _ = row.kubectl(&["delete", "pv", &row.namespace]);
}

fn persistent_volume_claim_of_a_host_path(row: &Row<'_>) {
    let data = row.shared.0.join("data");
    let volume = claim(row, json!({"hostPath": {"path": data}}), "ReadWriteOnce");
    let _ = say(row, "echo kept > /v/d/file", volume);
    assert_eq!(fs::read_to_string(data.join("file")).unwrap_or_default(), "kept\n");
    unclaim(row);
    assert!(data.join("file").exists());
}

fn local(row: &Row<'_>) -> Value {
    let data = row.shared.0.join("data");
    fs::create_dir_all(&data).expect("a folder can be made");
    json!({"local": {"path": data}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}}})
}

fn persistent_volume_claim_of_a_local_path(row: &Row<'_>) {
    let volume = claim(row, local(row), "ReadWriteOnce");
    let _ = say(row, "echo kept > /v/d/file", volume);
    assert!(row.shared.0.join("data/file").exists());
    unclaim(row);
}

fn persistent_volume_claim_missing(row: &Row<'_>) {
    stay(row, "p", STAY, json!([{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}]));
    row.says("p", "persistentvolumeclaim \"claim\" not found");
    let _ = claim(row, local(row), "ReadWriteOnce");
    row.ready("p");
    unclaim(row);
}

fn persistent_volume_claim_read_only_many(row: &Row<'_>) {
    let volume = claim(row, local(row), "ReadOnlyMany");
    assert_eq!(say(row, "touch /v/d/file 2>/dev/null || echo read-only", volume), ["read-only"]);
    unclaim(row);
}

fn image_volume(row: &Row<'_>) {
    let volume = json!([{"name": "i", "image": {"reference": "windlass/busybox:1", "pullPolicy": "Never"}}]);
    let line = "ls /v/i/bin/sh; touch /v/i/x 2>/dev/null || echo read-only";
    assert_eq!(say(row, line, volume), ["/v/i/bin/sh", "read-only"]);
}

fn image_volume_shows_what_the_image_has(row: &Row<'_>) {
    // An artifact: nothing of what Docker puts into every container belongs to it.
    let dir = row.shared.0.join("artifact");
    for folder in ["model/dev", "etc"] {
        fs::create_dir_all(dir.join(folder)).expect("a folder can be made");
    }
    for file in ["model/weights", "model/dev/notes", "etc/model.conf"] {
        fs::write(dir.join(file), "x").expect("a file can be written");
    }
    fs::write(dir.join("Dockerfile"), "FROM scratch\nCOPY model /model\nCOPY etc /etc\n")
        .expect("a file can be written");
    let _ = row.world.docker(&["build", "-q", "-t", "windlass/artifact:1", &dir.to_string_lossy()]);
    let volume = json!([{"name": "i", "image": {"reference": "windlass/artifact:1", "pullPolicy": "Never"}}]);
    let told = say(row, "cd /v/i; find . | sort", volume);
    assert_eq!(
        told,
        [".", "./etc", "./etc/model.conf", "./model", "./model/dev", "./model/dev/notes", "./model/weights"]
    );
}

fn image_volume_never_present(row: &Row<'_>) {
    stay(row, "p", STAY, json!([{"name": "i", "image": {"reference": "windlass/none:1", "pullPolicy": "Never"}}]));
    row.says("p", "is not present with pull policy of Never");
}
