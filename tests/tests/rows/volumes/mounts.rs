//! The ways to mount a volume.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{
    Mirror, PATIENCE, eventually,
    sharing::{condition, main_of},
};

use super::{map, stay};
use crate::row::{Row, STAY, text};

crate::rows![
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
    hung_mount_costs_its_own_pods_only,
];

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
