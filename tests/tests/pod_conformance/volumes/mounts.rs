//! The ways to mount a volume.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, HangingMount, eventually,
    shared_dir::{condition, container_status},
};

use super::{map, stay};
use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    mount_read_only,
    mount_recursive_read_only_enabled,
    mount_recursive_read_only_if_possible,
    mount_propagation_host_to_container,
    sub_path,
    sub_path_is_created_with_the_mode_of_the_volume,
    sub_path_out_of_the_volume,
    sub_path_is_never_updated,
    sub_path_expr,
    sub_path_expr_of_a_missing_variable,
    sub_path_expr_absolute,
    sub_path_expr_fixed_by_an_annotation,
    mounts_within_mounts,
    hung_mount_affects_its_own_pods_only,
];

/// A container that mounts /v/e of the volume `e` with additional fields, and its hostPath volume.
fn mounted(case: &Case<'_>, more: Value) -> (PathBuf, Value, Value) {
    let path = case.shared.0.join("data");
    fs::create_dir_all(&path).expect("a directory can be created");
    let mut mount = more;
    mount["name"] = json!("e");
    mount["mountPath"] = json!("/v/e");
    let env = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}}]);
    let spec = json!({"volumes": [{"name": "e", "hostPath": {"path": path}}]});
    (path, json!({"volumeMounts": [mount], "env": env}), spec)
}

fn mount_read_only(case: &Case<'_>) {
    let (_, container, spec) = mounted(case, json!({"readOnly": true}));
    assert_eq!(case.run("p", "touch /v/e/x 2>/dev/null || echo read-only", container, spec), ["read-only"]);
}

/// Whether a mount below a read-only mount is writable.
fn below(case: &Case<'_>, how: &str) -> (Vec<String>, Value) {
    let (path, container, spec) = mounted(case, json!({"readOnly": true, "recursiveReadOnly": how}));
    let below = path.join("below");
    fs::create_dir_all(&below).expect("a directory can be created");
    let _ = case.testbed.sh(&format!("mount -t tmpfs none {}", below.display()));
    let output = case.run("p", "touch /v/e/below/x 2>/dev/null && echo written || echo refused", container, spec);
    let pod = case.wait_phase("p", "Succeeded");
    let _ = case.kubectl(&["delete", "pod", "p"]);
    let _ = case.testbed.sh(&format!("umount {}", below.display()));
    let mounts = container_status(&pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
    (output, mounts.into_iter().find(|m| m["name"] == "e").unwrap_or_default()["recursiveReadOnly"].clone())
}

fn mount_recursive_read_only_enabled(case: &Case<'_>) {
    assert_eq!(below(case, "Enabled"), (vec!["refused".to_owned()], json!("Enabled")));
}

fn mount_recursive_read_only_if_possible(case: &Case<'_>) {
    assert_eq!(below(case, "IfPossible"), (vec!["refused".to_owned()], json!("Enabled")));
}

fn mount_propagation_host_to_container(case: &Case<'_>) {
    let (path, container, spec) = mounted(case, json!({"mountPropagation": "HostToContainer"}));
    // Only shared mounts of the node propagate.
    let _ = case.testbed.sh(&format!("mount --bind {0} {0}; mount --make-rshared {0}", path.display()));
    case.shell(
        "p",
        "until [ -e /v/e/late/x ]; do sleep 0.1; done; touch /shared/seen; exec sleep 100000",
        container,
        spec,
    );
    case.wait_ready("p");
    let late = path.join("late");
    fs::create_dir_all(&late).expect("a directory can be created");
    let _ = case.testbed.sh(&format!("mount -t tmpfs none {0} && touch {0}/x", late.display()));
    case.output("seen");
    let _ = case.kubectl(&["delete", "pod", "p"]);
    let _ = case.testbed.sh(&format!("umount {} {}", late.display(), path.display()));
}

fn sub_path(case: &Case<'_>) {
    let (path, container, spec) = mounted(case, json!({"subPath": "a/b"}));
    let _ = case.run("p", "echo x > /v/e/file", container, spec);
    assert_eq!(fs::read_to_string(path.join("a/b/file")).unwrap_or_default(), "x\n");
}

fn sub_path_is_created_with_the_mode_of_the_volume(case: &Case<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/v/e", "subPath": "made"}]});
    let spec = json!({"volumes": [{"name": "e", "emptyDir": {}}]});
    assert_eq!(case.run("p", "stat -c %a /v/e", container, spec), ["777"]);
}

fn sub_path_out_of_the_volume(case: &Case<'_>) {
    let (path, container, spec) = mounted(case, json!({"subPath": "out"}));
    std::os::unix::fs::symlink("/etc", path.join("out")).expect("a link can be made");
    case.shell("p", SLEEP_FOREVER, container, spec);
    case.wait_waiting("p", "CreateContainerConfigError");
    case.wait_for_event("p", "leads out of its volume");
    let (_, mut container, mut spec) = mounted(case, json!({"subPath": "../etc"}));
    container["name"] = json!("main");
    spec["containers"] = json!([container]);
    let refused = case.kubectl.output(&["apply", "-f", "-"], &case.shared.pod("q", spec));
    assert!(!refused.ok && refused.err.contains("must not contain '..'"), "{refused:?}");
}

fn sub_path_is_never_updated(case: &Case<'_>) {
    map(case, json!({"a": "one"}));
    let container = json!({"volumeMounts": [{"name": "c", "mountPath": "/v/part", "subPath": "a"}, {"name": "c", "mountPath": "/v/all"}]});
    let line = "until grep -q two /v/all/a; do sleep 0.1; done; cp /v/part /shared/seen; exec sleep 100000";
    case.shell("p", line, container, json!({"volumes": [{"name": "c", "configMap": {"name": "map"}}]}));
    case.wait_ready("p");
    map(case, json!({"a": "two"}));
    assert_eq!(case.output("seen"), ["one"]);
}

fn sub_path_expr(case: &Case<'_>) {
    let (path, container, spec) = mounted(case, json!({"subPathExpr": "of/$(POD)"}));
    let _ = case.run("p", "echo x > /v/e/file", container, spec);
    assert_eq!(fs::read_to_string(path.join("of/p/file")).unwrap_or_default(), "x\n");
}

fn sub_path_expr_of_a_missing_variable(case: &Case<'_>) {
    let (_, container, spec) = mounted(case, json!({"subPathExpr": "$(NOBODY)"}));
    case.shell("p", SLEEP_FOREVER, container, spec);
    let waiting = case.wait_waiting("p", "CreateContainerConfigError");
    assert!(text(&waiting["message"]).contains("NOBODY"), "{waiting}");
}

fn sub_path_expr_absolute(case: &Case<'_>) {
    let (_, container, spec) = mounted(case, json!({"subPathExpr": "$(NOTE)"}));
    let spec = crate::case::one(SLEEP_FOREVER, container, spec);
    case.pod_with("p", json!({"annotations": {"note": "/etc"}}), spec);
    case.wait_waiting("p", "CreateContainerConfigError");
}

fn sub_path_expr_fixed_by_an_annotation(case: &Case<'_>) {
    let (path, container, spec) = mounted(case, json!({"subPathExpr": "$(NOTE)"}));
    let spec = crate::case::one(SLEEP_FOREVER, container, spec);
    case.pod_with("p", json!({"annotations": {"note": "../out"}}), spec);
    case.wait_waiting("p", "CreateContainerConfigError");
    let _ = case.kubectl(&["annotate", "pod", "p", "note=fine", "--overwrite"]);
    let pod = case.wait_ready("p");
    assert!(path.join("fine").is_dir() && condition(&pod, "Ready")["status"] == "True");
}

fn mounts_within_mounts(case: &Case<'_>) {
    // For any order in the spec.
    let container = json!({"volumeMounts": [{"name": "b", "mountPath": "/v/a/b"}, {"name": "a", "mountPath": "/v/a"}]});
    let spec = json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {"medium": "Memory"}}]});
    let output =
        case.run("p", "touch /v/a/x /v/a/b/y; ls /v/a; df /v/a/b | tail -1 | awk '{print $1}'", container, spec);
    assert_eq!(output, ["b", "x", "tmpfs"]);
}

/// The node's last heartbeat.
fn renewed(case: &Case<'_>) -> String {
    case.kubectl(&["get", "lease", "node", "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"])
}

fn hung_mount_affects_its_own_pods_only(case: &Case<'_>) {
    let far = HangingMount::new(&case.shared.0.join("server"), &case.testbed.dir().join("far"));
    let pods = ["a", "b", "c", "d"];
    for name in pods {
        let container = json!({"volumeMounts": [{"name": "far", "mountPath": "/far", "subPath": name}]});
        case.shell(
            name,
            SLEEP_FOREVER,
            container,
            json!({"volumes": [{"name": "far", "hostPath": {"path": far.path()}}]}),
        );
    }
    for name in pods {
        case.wait_ready(name);
    }
    far.hang();
    for name in pods {
        let _ = case.testbed.docker(&["kill", &case.ids(name, "main")[0]]);
    }
    // A new pod waits for the mount too, before anything of it is created.
    stay(case, "late", SLEEP_FOREVER, json!([{"name": "far", "hostPath": {"path": far.path(), "type": "Directory"}}]));
    for name in pods {
        case.wait_waiting(name, "CreateContainerConfigError");
        case.wait_for_event(name, "has not come back");
    }
    case.wait_for_event("late", "FailedMount");
    assert!(case.events("late").contains("has not come back"), "{}", case.events("late"));
    // Meanwhile the node keeps working.
    let before = renewed(case);
    stay(case, "other", SLEEP_FOREVER, json!([{"name": "e", "emptyDir": {}}]));
    case.wait_ready("other");
    let _ = case.kubectl(&["delete", "pod", "other", "a", "late"]);
    for page in ["metrics", "metrics/cadvisor", "metrics/resource"] {
        let _ = case.testbed.sh(&format!("curl -fsS --max-time 10 -o /dev/null http://127.0.0.1:10255/{page}"));
    }
    eventually(DEFAULT_TIMEOUT, "the node renews its lease", || {
        anyhow::ensure!(renewed(case) != before);
        Ok(())
    });
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    assert_eq!(case.kubectl(&["get", "node", "node", "-o", ready]), "True");
    far.answer();
    for name in &pods[1..] {
        case.wait(name, "runs again", |p| {
            container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true
        });
    }
    let _ = case.kubectl(&["delete", "pod", "--all"]);
}
