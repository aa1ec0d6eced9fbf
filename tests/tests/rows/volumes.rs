//! Volumes and the ways to mount them.

use std::{fs, os::unix::fs::FileTypeExt as _, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{
    Mirror, PATIENCE, eventually,
    sharing::{condition, main_of},
};

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
    config_map_files,
    config_map_default_mode,
    config_map_items,
    config_map_binary_data,
    config_map_optional,
    config_map_missing,
    config_map_refreshed,
    secret_files_in_memory,
    secret_modes,
    secret_optional,
    secret_missing,
    secret_refreshed,
    downward_api_labels_and_annotations,
    downward_api_resource_field_ref,
    downward_api_refreshed,
    projected_sources,
    projected_in_memory,
    service_account_token_mode,
    service_account_token_mode_of_one_user,
    service_account_token_mode_of_a_group,
    service_account_token_audience_and_expiration,
    persistent_volume_claim_of_a_host_path,
    persistent_volume_claim_of_a_local_path,
    persistent_volume_claim_missing,
    persistent_volume_claim_read_only_many,
    image_volume,
    image_volume_shows_what_the_image_has,
    image_volume_never_present,
    mount_read_only,
    mount_recursive_read_only_enabled,
    mount_recursive_read_only_if_possible,
    mount_propagation_host_to_container,
    sub_path,
    sub_path_made_with_the_mode_of_the_volume,
    sub_path_out_of_the_volume,
    sub_path_is_never_updated,
    sub_path_expr,
    sub_path_expr_of_a_missing_variable,
    sub_path_expr_absolute,
    sub_path_expr_mended_by_an_annotation,
    mounts_within_mounts,
    atomic_writer,
    volumes_of_objects_cannot_be_written,
    hung_mount_costs_its_own_pods_only,
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

fn config_map_files(row: &Row<'_>) {
    map(row, json!({"a": "1", "b": "2\n"}));
    let line = "cd /v/c; for f in a b; do stat -L -c %a $f; cat $f; done";
    assert_eq!(say(row, line, json!([{"name": "c", "configMap": {"name": "map"}}])), ["644", "1644", "2"]);
}

fn config_map_default_mode(row: &Row<'_>) {
    map(row, json!({"a": "1"}));
    let volume = json!([{"name": "c", "configMap": {"name": "map", "defaultMode": 0o400}}]);
    assert_eq!(say(row, "stat -L -c %a /v/c/a", volume), ["400"]);
}

fn config_map_items(row: &Row<'_>) {
    map(row, json!({"a": "1", "b": "2"}));
    let items = json!([{"key": "a", "path": "deep/down/x", "mode": 0o440}]);
    let volume = json!([{"name": "c", "configMap": {"name": "map", "items": items}}]);
    assert_eq!(say(row, "cd /v/c; stat -L -c %a deep/down/x; ls", volume), ["440", "deep"]);
}

fn config_map_binary_data(row: &Row<'_>) {
    row.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"},
        "data": {"a": "1"}, "binaryData": {"bytes": "AAH/"}})]);
    let line = "od -An -tx1 /v/c/bytes | xargs; cat /v/c/a";
    assert_eq!(say(row, line, json!([{"name": "c", "configMap": {"name": "map"}}])), ["00 01 ff", "1"]);
}

fn config_map_optional(row: &Row<'_>) {
    let volume = json!([{"name": "c", "configMap": {"name": "map", "optional": true}}]);
    stay(row, "p", "until [ -e /v/c/late ]; do sleep 0.1; done; touch /shared/seen; exec sleep 100000", volume);
    row.ready("p");
    map(row, json!({"late": "1"}));
    row.printed("seen");
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

fn config_map_missing(row: &Row<'_>) {
    let volume = json!([{"name": "c", "configMap": {"name": "map"}}]);
    waits(row, volume, "configmap \"map\" not found", || map(row, json!({"a": "1"})));
}

/// Copies a file of a volume to the row's folder for ever.
fn copies(file: &str) -> String {
    format!("while :; do cp {file} /shared/.seen && mv /shared/.seen /shared/seen; sleep 0.1; done")
}

#[track_caller]
fn sees(row: &Row<'_>, wanted: &str) {
    eventually(PATIENCE, &format!("{wanted} is seen"), || {
        let lines = row.shared.lines("seen");
        anyhow::ensure!(lines.iter().any(|l| l == wanted), "{lines:?}");
        Ok(())
    });
}

fn config_map_refreshed(row: &Row<'_>) {
    map(row, json!({"a": "one"}));
    stay(row, "p", &copies("/v/c/a"), json!([{"name": "c", "configMap": {"name": "map"}}]));
    sees(row, "one");
    map(row, json!({"a": "two"}));
    sees(row, "two");
}

fn secret_files_in_memory(row: &Row<'_>) {
    hidden(row, json!({"word": "psst"}));
    let line = "cat /v/s/word; echo; df /v/s | tail -1 | awk '{print $1}'";
    assert_eq!(say(row, line, json!([{"name": "s", "secret": {"secretName": "hidden"}}])), ["psst", "tmpfs"]);
}

fn secret_modes(row: &Row<'_>) {
    hidden(row, json!({"a": "1", "b": "2"}));
    let items = json!([{"key": "a", "path": "x/a", "mode": 0o600}, {"key": "b", "path": "b"}]);
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden", "defaultMode": 0o440, "items": items}}]);
    assert_eq!(say(row, "stat -L -c %a /v/s/x/a /v/s/b", volume), ["600", "440"]);
}

fn secret_optional(row: &Row<'_>) {
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden", "optional": true}}]);
    assert_eq!(say(row, "ls /v/s | wc -l", volume), ["0"]);
}

fn secret_missing(row: &Row<'_>) {
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden"}}]);
    waits(row, volume, "secret \"hidden\" not found", || hidden(row, json!({"a": "1"})));
}

fn secret_refreshed(row: &Row<'_>) {
    hidden(row, json!({"a": "one"}));
    stay(row, "p", &copies("/v/s/a"), json!([{"name": "s", "secret": {"secretName": "hidden"}}]));
    sees(row, "one");
    hidden(row, json!({"a": "two"}));
    sees(row, "two");
}

fn downward(items: Value) -> Value {
    json!([{"name": "d", "downwardAPI": {"items": items}}])
}

fn field(path: &str, field: &str) -> Value {
    json!({"path": path, "fieldRef": {"fieldPath": field}})
}

fn downward_api_labels_and_annotations(row: &Row<'_>) {
    let items = json!([
        field("labels", "metadata.labels"),
        field("notes", "metadata.annotations"),
        field("one", "metadata.labels['b']"),
        field("name", "metadata.name"),
        field("space", "metadata.namespace")
    ]);
    let (container, spec) = with(downward(items));
    let metadata = json!({"labels": {"b": "2", "a": "1"}, "annotations": {"note": "say \"it\"\nnow"}});
    let line = "cd /v/d; cat labels; echo; grep ^note notes; for f in one name space; do cat $f; echo; done";
    row.start("p", line, metadata, container, spec);
    let wanted = ["a=\"1\"", "b=\"2\"", "note=\"say \\\"it\\\"\\nnow\"", "2", "p", &row.namespace];
    let told: Vec<String> = row.printed("p").into_iter().filter(|l| !l.is_empty()).collect();
    assert_eq!(told, wanted);
}

fn downward_api_resource_field_ref(row: &Row<'_>) {
    let amount = |path: &str, resource: &str, divisor: &str| json!({"path": path, "resourceFieldRef": {"containerName": "main", "resource": resource, "divisor": divisor}});
    let items = json!([amount("cpu", "requests.cpu", "1m"), amount("memory", "limits.memory", "1Mi")]);
    let (mut container, spec) = with(downward(items));
    container["resources"] = json!({"requests": {"cpu": "125m"}, "limits": {"memory": "32Mi"}});
    assert_eq!(row.run("p", "cat /v/d/cpu; echo; cat /v/d/memory", container, spec), ["125", "32"]);
}

fn downward_api_refreshed(row: &Row<'_>) {
    stay(row, "p", &copies("/v/d/labels"), downward(json!([field("labels", "metadata.labels")])));
    row.ready("p");
    let _ = row.kubectl(&["label", "pod", "p", "colour=blue"]);
    sees(row, "colour=\"blue\"");
}

fn projected(row: &Row<'_>) -> Value {
    map(row, json!({"a": "1"}));
    hidden(row, json!({"word": "psst"}));
    json!([{"name": "p", "projected": {"defaultMode": 0o440, "sources": [
        {"configMap": {"name": "map", "items": [{"key": "a", "path": "map/a", "mode": 0o400}]}},
        {"secret": {"name": "hidden"}}, {"downwardAPI": {"items": [field("name", "metadata.name")]}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        {"configMap": {"name": "none", "optional": true}}]}}])
}

fn projected_sources(row: &Row<'_>) {
    let volume = projected(row);
    let line = "cd /v/p; for f in map/a word name; do echo $(stat -L -c %a $f) $(cat $f); done; wc -l < token";
    assert_eq!(say(row, line, volume), ["400 1", "440 psst", "440 p", "0"]);
}

fn projected_in_memory(row: &Row<'_>) {
    let volume = projected(row);
    assert_eq!(say(row, "df /v/p | tail -1 | awk '{print $1}'", volume), ["tmpfs"]);
}

/// Mode, owner and group of the token that every pod has.
fn token(row: &Row<'_>, security: Value) -> Vec<String> {
    let line = "stat -L -c '%a %u %g' /var/run/secrets/kubernetes.io/serviceaccount/token";
    row.run("p", line, json!({}), json!({"securityContext": security}))
}

fn service_account_token_mode(row: &Row<'_>) {
    assert_eq!(token(row, json!({})), ["644 0 0"]);
}

fn service_account_token_mode_of_one_user(row: &Row<'_>) {
    assert_eq!(token(row, json!({"runAsUser": 1000})), ["600 1000 0"]);
}

fn service_account_token_mode_of_a_group(row: &Row<'_>) {
    assert_eq!(token(row, json!({"runAsUser": 1000, "fsGroup": 4000}))[0].split(' ').next(), Some("640"));
}

fn service_account_token_audience_and_expiration(row: &Row<'_>) {
    let source = json!({"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}});
    let volume = json!([{"name": "p", "projected": {"sources": [source]}}]);
    // The middle part of a token, without the padding that base64 would want.
    let line = "cut -d. -f2 /v/p/t | tr '_-' '/+' | (cat; echo ===) | base64 -d 2>/dev/null";
    let claims = say(row, line, volume).concat();
    let claims: Value =
        serde_json::Deserializer::from_str(&claims).into_iter().next().and_then(Result::ok).unwrap_or_default();
    assert_eq!(claims["aud"], json!(["vault"]), "{claims}");
    let number = |key: &str| claims[key].as_i64().unwrap_or_default();
    assert_eq!(number("exp") - number("iat"), 600, "{claims}");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "p", "{claims}");
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

/// A container that mounts /v/e of the volume `e` with more fields, and its volume: a path of the node.
fn mounted(row: &Row<'_>, more: Value) -> (PathBuf, Value, Value) {
    let path = row.shared.0.join("data");
    fs::create_dir_all(&path).expect("a folder can be made");
    let mut mount = more;
    mount["name"] = json!("e");
    mount["mountPath"] = json!("/v/e");
    let env = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}}]);
    let spec = json!({"volumes": [{"name": "e", "hostPath": {"path": path}}]});
    (path, json!({"volumeMounts": [mount], "env": env}), spec)
}

fn mount_read_only(row: &Row<'_>) {
    let (_, container, spec) = mounted(row, json!({"readOnly": true}));
    assert_eq!(row.run("p", "touch /v/e/x 2>/dev/null || echo read-only", container, spec), ["read-only"]);
}

/// Whether something mounted below a read-only mount can be written.
fn below(row: &Row<'_>, how: &str) -> (Vec<String>, Value) {
    let (path, container, spec) = mounted(row, json!({"readOnly": true, "recursiveReadOnly": how}));
    let below = path.join("below");
    fs::create_dir_all(&below).expect("a folder can be made");
    let _ = row.world.sh(&format!("mount -t tmpfs none {}", below.display()));
    let told = row.run("p", "touch /v/e/below/x 2>/dev/null && echo written || echo refused", container, spec);
    let pod = row.phase("p", "Succeeded");
    let _ = row.kubectl(&["delete", "pod", "p"]);
    let _ = row.world.sh(&format!("umount {}", below.display()));
    let mounts = main_of(&pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
    (told, mounts.into_iter().find(|m| m["name"] == "e").unwrap_or_default()["recursiveReadOnly"].clone())
}

fn mount_recursive_read_only_enabled(row: &Row<'_>) {
    assert_eq!(below(row, "Enabled"), (vec!["refused".to_owned()], json!("Enabled")));
}

fn mount_recursive_read_only_if_possible(row: &Row<'_>) {
    assert_eq!(below(row, "IfPossible"), (vec!["refused".to_owned()], json!("Enabled")));
}

fn mount_propagation_host_to_container(row: &Row<'_>) {
    let (path, container, spec) = mounted(row, json!({"mountPropagation": "HostToContainer"}));
    // Only what is shared on the node comes through.
    let _ = row.world.sh(&format!("mount --bind {0} {0}; mount --make-rshared {0}", path.display()));
    row.shell(
        "p",
        "until [ -e /v/e/late/x ]; do sleep 0.1; done; touch /shared/seen; exec sleep 100000",
        container,
        spec,
    );
    row.ready("p");
    let late = path.join("late");
    fs::create_dir_all(&late).expect("a folder can be made");
    let _ = row.world.sh(&format!("mount -t tmpfs none {0} && touch {0}/x", late.display()));
    row.printed("seen");
    let _ = row.kubectl(&["delete", "pod", "p"]);
    let _ = row.world.sh(&format!("umount {} {}", late.display(), path.display()));
}

fn sub_path(row: &Row<'_>) {
    let (path, container, spec) = mounted(row, json!({"subPath": "a/b"}));
    let _ = row.run("p", "echo x > /v/e/file", container, spec);
    assert_eq!(fs::read_to_string(path.join("a/b/file")).unwrap_or_default(), "x\n");
}

fn sub_path_made_with_the_mode_of_the_volume(row: &Row<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/v/e", "subPath": "made"}]});
    let spec = json!({"volumes": [{"name": "e", "emptyDir": {}}]});
    assert_eq!(row.run("p", "stat -c %a /v/e", container, spec), ["777"]);
}

fn sub_path_out_of_the_volume(row: &Row<'_>) {
    let (path, container, spec) = mounted(row, json!({"subPath": "out"}));
    std::os::unix::fs::symlink("/etc", path.join("out")).expect("a link can be made");
    row.shell("p", STAY, container, spec);
    row.waiting("p", "CreateContainerConfigError");
    row.says("p", "leads out of its volume");
    let (_, mut container, mut spec) = mounted(row, json!({"subPath": "../etc"}));
    container["name"] = json!("main");
    spec["containers"] = json!([container]);
    let refused = row.kubectl.output(&["apply", "-f", "-"], &row.shared.pod("q", spec));
    assert!(!refused.ok && refused.err.contains("must not contain '..'"), "{refused:?}");
}

fn sub_path_is_never_updated(row: &Row<'_>) {
    map(row, json!({"a": "one"}));
    let container = json!({"volumeMounts": [{"name": "c", "mountPath": "/v/part", "subPath": "a"}, {"name": "c", "mountPath": "/v/all"}]});
    let line = "until grep -q two /v/all/a; do sleep 0.1; done; cp /v/part /shared/seen; exec sleep 100000";
    row.shell("p", line, container, json!({"volumes": [{"name": "c", "configMap": {"name": "map"}}]}));
    row.ready("p");
    map(row, json!({"a": "two"}));
    assert_eq!(row.printed("seen"), ["one"]);
}

fn sub_path_expr(row: &Row<'_>) {
    let (path, container, spec) = mounted(row, json!({"subPathExpr": "of/$(POD)"}));
    let _ = row.run("p", "echo x > /v/e/file", container, spec);
    assert_eq!(fs::read_to_string(path.join("of/p/file")).unwrap_or_default(), "x\n");
}

fn sub_path_expr_of_a_missing_variable(row: &Row<'_>) {
    let (_, container, spec) = mounted(row, json!({"subPathExpr": "$(NOBODY)"}));
    row.shell("p", STAY, container, spec);
    let waiting = row.waiting("p", "CreateContainerConfigError");
    assert!(text(&waiting["message"]).contains("NOBODY"), "{waiting}");
}

fn sub_path_expr_absolute(row: &Row<'_>) {
    let (_, container, spec) = mounted(row, json!({"subPathExpr": "$(NOTE)"}));
    let spec = crate::row::one(STAY, container, spec);
    row.pod_with("p", json!({"annotations": {"note": "/etc"}}), spec);
    row.waiting("p", "CreateContainerConfigError");
}

fn sub_path_expr_mended_by_an_annotation(row: &Row<'_>) {
    let (path, container, spec) = mounted(row, json!({"subPathExpr": "$(NOTE)"}));
    let spec = crate::row::one(STAY, container, spec);
    row.pod_with("p", json!({"annotations": {"note": "../out"}}), spec);
    row.waiting("p", "CreateContainerConfigError");
    let _ = row.kubectl(&["annotate", "pod", "p", "note=fine", "--overwrite"]);
    let pod = row.ready("p");
    assert!(path.join("fine").is_dir() && condition(&pod, "Ready")["status"] == "True");
}

fn mounts_within_mounts(row: &Row<'_>) {
    // Whatever the order in the spec is.
    let container = json!({"volumeMounts": [{"name": "b", "mountPath": "/v/a/b"}, {"name": "a", "mountPath": "/v/a"}]});
    let spec = json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {"medium": "Memory"}}]});
    let told = row.run("p", "touch /v/a/x /v/a/b/y; ls /v/a; df /v/a/b | tail -1 | awk '{print $1}'", container, spec);
    assert_eq!(told, ["b", "x", "tmpfs"]);
}

fn atomic_writer(row: &Row<'_>) {
    map(row, json!({"a": "one", "b": "gone later"}));
    let line = "cd /v/c; readlink a; readlink ..data; until [ ! -e b ]; do sleep 0.1; done; readlink ..data; cat a; echo; \
                ls -A | grep -c '^\\.\\.[0-9]'; ls -L a b 2>/dev/null";
    let (container, spec) = with(json!([{"name": "c", "configMap": {"name": "map"}}]));
    row.start("p", line, json!({}), container, spec);
    row.wait("p", "runs", |p| main_of(p)["state"]["running"].is_object());
    row.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"a": "two"}})]);
    let told = row.printed("p");
    // One link for each name, one folder that was swapped, and no rest of the old one.
    assert!(told[0] == "..data/a" && told[1].starts_with("..") && told[2].starts_with(".."), "{told:?}");
    assert!(told[1] != told[2] && told[3..] == ["two", "1", "a"], "{told:?}");
}

fn volumes_of_objects_cannot_be_written(row: &Row<'_>) {
    map(row, json!({"a": "one"}));
    hidden(row, json!({"a": "one"}));
    let victim = row.shared.0.join("victim");
    fs::create_dir(&victim).expect("a folder can be made");
    fs::write(victim.join("kept"), "").expect("a file can be written");
    let volumes = json!([{"name": "c", "configMap": {"name": "map"}}, {"name": "s", "secret": {"secretName": "hidden"}},
        downward(json!([field("a", "metadata.name")]))[0], {"name": "p", "projected": {"sources": [
            {"configMap": {"name": "map"}}, {"secret": {"name": "hidden", "items": [{"key": "a", "path": "b"}]}}]}}]);
    // What is removed or written through a link that the container has put there would be the node's.
    let line = format!(
        "for v in c s d p; do touch /v/$v/x; rm /v/$v/..data && ln -s {0} /v/$v/..data; ln -s {0} /v/$v/..data_tmp; done \
         > /shared/.tried 2>&1; mv /shared/.tried /shared/tried; \
         until grep -q two /v/c/a && grep -q two /v/s/a && grep -q two /v/p/a && grep -q two /v/p/b; do sleep 0.1; done; \
         touch /shared/seen; exec sleep 100000",
        victim.display()
    );
    stay(row, "p", &line, volumes);
    let tried = row.printed("tried");
    map(row, json!({"a": "two"}));
    hidden(row, json!({"a": "two"}));
    row.printed("seen");
    assert!(victim.join("kept").exists(), "{tried:?}");
    let refused = tried.iter().filter(|l| l.contains("Read-only file system")).count();
    assert_eq!((tried.len(), refused), (12, 12), "{tried:?}");
}

/// When the node last said that it is there.
fn renewed(row: &Row<'_>) -> String {
    row.kubectl(&["get", "lease", "node", "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"])
}

fn hung_mount_costs_its_own_pods_only(row: &Row<'_>) {
    let far = Mirror::new(&row.shared.0.join("server"), &row.world.dir().join("far"));
    let pods = ["a", "b", "c", "d"];
    for name in pods {
        let container = json!({"volumeMounts": [{"name": "far", "mountPath": "/far", "subPath": name}]});
        row.shell(name, STAY, container, json!({"volumes": [{"name": "far", "hostPath": {"path": far.path()}}]}));
    }
    for name in pods {
        row.ready(name);
    }
    far.hang();
    for name in pods {
        let _ = row.world.docker(&["kill", &row.ids(name, "main")[0]]);
    }
    // A new pod waits for the mount too, before anything of it is made.
    stay(row, "late", STAY, json!([{"name": "far", "hostPath": {"path": far.path(), "type": "Directory"}}]));
    for name in pods {
        row.waiting(name, "CreateContainerConfigError");
        row.says(name, "has not come back");
    }
    row.says("late", "FailedMount");
    assert!(row.events("late").contains("has not come back"), "{}", row.events("late"));
    // Meanwhile the node does what it does.
    let before = renewed(row);
    stay(row, "other", STAY, json!([{"name": "e", "emptyDir": {}}]));
    row.ready("other");
    let _ = row.kubectl(&["delete", "pod", "other", "a", "late"]);
    for page in ["metrics", "metrics/cadvisor", "metrics/resource"] {
        let _ = row.world.sh(&format!("curl -fsS --max-time 10 -o /dev/null http://127.0.0.1:10255/{page}"));
    }
    eventually(PATIENCE, "the node renews its lease", || {
        anyhow::ensure!(renewed(row) != before);
        Ok(())
    });
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    assert_eq!(row.kubectl(&["get", "node", "node", "-o", ready]), "True");
    far.answer();
    for name in &pods[1..] {
        row.wait(name, "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    }
    let _ = row.kubectl(&["delete", "pod", "--all"]);
}
