//! Who containers run as, and what they may do.

use std::fs;

use serde_json::{Value, json};
use windlass_tests::cluster::Api;

use crate::row::{Row, STAY, one, text};

crate::rows![
    run_as_user_of_the_pod,
    run_as_user_of_the_container_wins,
    run_as_user_of_the_image,
    run_as_group,
    run_as_group_without_user,
    run_as_non_root_and_image_of_root,
    run_as_non_root_and_uid_zero,
    run_as_non_root_and_user_by_name,
    run_as_non_root_and_numeric_user,
    supplemental_groups,
    fs_group_is_a_group_of_the_process,
    fs_group_on_empty_dir,
    fs_group_on_files_of_objects,
    fs_group_not_on_host_path,
    fs_group_change_policy_on_root_mismatch,
    privileged,
    capabilities_add,
    capabilities_drop,
    capabilities_drop_all_add_one,
    read_only_root_filesystem,
    allow_privilege_escalation_false,
    allow_privilege_escalation_unset,
    seccomp_runtime_default,
    seccomp_unconfined,
    seccomp_localhost,
    seccomp_localhost_missing,
    app_armor_unconfined,
    app_armor_runtime_default,
    se_linux_options,
    proc_mount_default,
    sysctl_safe,
    sysctl_unsafe,
    sysctl_net_with_host_network,
    oom_score_adj_best_effort,
    oom_score_adj_burstable,
    oom_score_adj_guaranteed,
];

/// What a line prints under a pod's and a container's security context.
#[track_caller]
fn under(row: &Row<'_>, line: &str, pod: Value, own: Value) -> Vec<String> {
    let lines = row.run("p", line, json!({"securityContext": own}), json!({"securityContext": pod}));
    lines.into_iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn status(field: &str) -> String {
    format!("grep ^{field}: /proc/self/status")
}

fn run_as_user_of_the_pod(row: &Row<'_>) {
    assert_eq!(under(row, "id -u; id -g", json!({"runAsUser": 1000}), json!({})), ["1000", "0"]);
}

fn run_as_user_of_the_container_wins(row: &Row<'_>) {
    assert_eq!(under(row, "id -u", json!({"runAsUser": 1000}), json!({"runAsUser": 2000})), ["2000"]);
}

/// A pod with an image of another user.
fn of_image(row: &Row<'_>, user: &str, context: Value) {
    let name = format!("rows/user-{}:1", user.replace(':', "-"));
    row.image(&name, &format!("USER {user}"));
    let line = "id -u > /shared/.id; id -g >> /shared/.id; mv /shared/.id /shared/id; exec sleep 100000";
    let container = json!({"image": name, "imagePullPolicy": "Never", "securityContext": context});
    row.shell("p", line, container, json!({}));
}

fn run_as_user_of_the_image(row: &Row<'_>) {
    of_image(row, "www-data", json!({}));
    assert_eq!(row.printed("id"), ["33", "33"]);
}

fn run_as_group(row: &Row<'_>) {
    assert_eq!(under(row, "id -u; id -g", json!({"runAsUser": 1000, "runAsGroup": 2000}), json!({})), ["1000", "2000"]);
}

fn run_as_group_without_user(row: &Row<'_>) {
    of_image(row, "www-data", json!({"runAsGroup": 2000}));
    assert_eq!(row.printed("id"), ["33", "2000"]);
}

#[track_caller]
fn config_error(row: &Row<'_>, words: &str) {
    let waiting = row.waiting("p", "CreateContainerConfigError");
    assert!(text(&waiting["message"]).contains(words), "{waiting}");
}

fn run_as_non_root_and_image_of_root(row: &Row<'_>) {
    row.shell("p", STAY, json!({"securityContext": {"runAsNonRoot": true}}), json!({}));
    config_error(row, "container has runAsNonRoot and image will run as root");
}

fn run_as_non_root_and_uid_zero(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}));
    config_error(row, "container's runAsUser breaks non-root policy");
}

fn run_as_non_root_and_user_by_name(row: &Row<'_>) {
    of_image(row, "www-data", json!({"runAsNonRoot": true}));
    config_error(row, "image has non-numeric user (www-data), cannot verify user is non-root");
}

fn run_as_non_root_and_numeric_user(row: &Row<'_>) {
    of_image(row, "33", json!({"runAsNonRoot": true}));
    row.ready("p");
}

fn supplemental_groups(row: &Row<'_>) {
    let groups = under(row, "id -G", json!({"runAsUser": 1000, "supplementalGroups": [3000, 3001]}), json!({}));
    for group in ["3000", "3001"] {
        assert!(groups[0].split(' ').any(|g| g == group), "{groups:?}");
    }
}

fn fs_group_is_a_group_of_the_process(row: &Row<'_>) {
    let groups = under(row, "id -G", json!({"runAsUser": 1000, "fsGroup": 4000}), json!({}));
    assert!(groups[0].split(' ').any(|g| g == "4000"), "{groups:?}");
}

fn fs_group_on_empty_dir(row: &Row<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}]});
    let spec = json!({"securityContext": {"runAsUser": 1000, "fsGroup": 4000},
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]});
    let line = "stat -c '%a %g' /e /m; touch /e/x /m/x; stat -c %g /e/x /m/x";
    assert_eq!(row.run("p", line, container, spec), ["2777 4000", "2777 4000", "4000", "4000"]);
}

fn fs_group_on_files_of_objects(row: &Row<'_>) {
    let _ = row.kubectl(&["create", "configmap", "map", "--from-literal=a=1"]);
    let _ = row.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=b=2"]);
    let downward = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let volumes = json!([{"name": "c", "configMap": {"name": "map", "defaultMode": 0o400}},
        {"name": "s", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "d", "downwardAPI": {"items": downward, "defaultMode": 0o400}},
        {"name": "p", "projected": {"defaultMode": 0o400, "sources": [{"configMap": {"name": "map"}}]}}]);
    let mounts: Vec<Value> =
        ["c", "s", "d", "p"].iter().map(|n| json!({"name": n, "mountPath": format!("/v/{n}")})).collect();
    let spec = json!({"volumes": volumes, "securityContext": {"runAsUser": 1000, "fsGroup": 4000}});
    let line = "for f in c/a s/b d/name p/a; do stat -L -c '%a %g' /v/$f; cat /v/$f > /dev/null || echo closed; done";
    assert_eq!(row.run("p", line, json!({"volumeMounts": mounts}), spec), ["440 4000"; 4]);
}

fn fs_group_not_on_host_path(row: &Row<'_>) {
    // The folder that every pod here has is one.
    let seen = under(row, "stat -c %g /shared", json!({"fsGroup": 4000}), json!({}));
    assert_eq!(seen, ["0"]);
}

fn fs_group_change_policy_on_root_mismatch(row: &Row<'_>) {
    // A volume whose root fits already is left as it is, all the way down.
    let data = row.world.dir().join("fs-group-data");
    fs::create_dir_all(&data).expect("a folder can be made");
    fs::write(data.join("file"), "").expect("a file can be written");
    let _ = row.world.sh(&format!("chown :4000 {0}; chmod 2775 {0}; chown :7 {0}/file", data.display()));
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rows-fs-group"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": data},
        "claimRef": {"namespace": row.namespace, "name": "claim"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}}}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    row.apply(&[volume, claim]);
    let look = |name: &str, policy: &str| {
        let spec = json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}],
            "securityContext": {"fsGroup": 4000, "fsGroupChangePolicy": policy}});
        row.run(name, "stat -c %g /d/file", json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]}), spec)
    };
    assert_eq!(look("mismatch", "OnRootMismatch"), ["7"]);
    // While another pod has it, a local volume is given to no group.
    let _ = row.kubectl(&["delete", "pod", "mismatch"]);
    assert_eq!(look("always", "Always"), ["4000"]);
    let _ = row.kubectl(&["delete", "pod", "always"]);
    let _ = row.kubectl(&["delete", "pvc", "claim"]);
    let _ = row.kubectl(&["delete", "pv", "rows-fs-group"]);
}

fn privileged(row: &Row<'_>) {
    // A machine that lacks some capability cannot start one: what Docker was asked for is seen all the same.
    let spec = json!({"restartPolicy": "Never"});
    row.shell("p", "exit 0", json!({"securityContext": {"privileged": true}}), spec);
    row.wait("p", "is over", |p| ["Succeeded", "Failed"].contains(&text(&p["status"]["phase"])));
    let host = row.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&host["Privileged"], &host["MaskedPaths"]), (&json!(true), &Value::Null), "{host}");
}

fn bits(lines: &[String]) -> u64 {
    u64::from_str_radix(lines[0].trim_start_matches("CapEff: "), 16).expect("the kernel writes numbers")
}

const NET_ADMIN: u64 = 1 << 12;
const CHOWN: u64 = 1;

fn capabilities_add(row: &Row<'_>) {
    let own = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let has = bits(&under(row, &status("CapEff"), json!({}), own));
    assert!(has & NET_ADMIN != 0 && has & CHOWN != 0, "{has:x}");
}

fn capabilities_drop(row: &Row<'_>) {
    let has = bits(&under(row, &status("CapEff"), json!({}), json!({"capabilities": {"drop": ["CHOWN"]}})));
    assert!(has & CHOWN == 0 && has != 0, "{has:x}");
}

fn capabilities_drop_all_add_one(row: &Row<'_>) {
    let own = json!({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}});
    assert_eq!(bits(&under(row, &status("CapEff"), json!({}), own)), CHOWN);
}

fn read_only_root_filesystem(row: &Row<'_>) {
    let line = "touch /x 2>/dev/null || echo read-only";
    assert_eq!(under(row, line, json!({}), json!({"readOnlyRootFilesystem": true})), ["read-only"]);
}

fn allow_privilege_escalation_false(row: &Row<'_>) {
    let own = json!({"allowPrivilegeEscalation": false});
    assert_eq!(under(row, &status("NoNewPrivs"), json!({}), own), ["NoNewPrivs: 1"]);
}

fn allow_privilege_escalation_unset(row: &Row<'_>) {
    assert_eq!(under(row, &status("NoNewPrivs"), json!({}), json!({})), ["NoNewPrivs: 0"]);
}

fn seccomp_runtime_default(row: &Row<'_>) {
    let pod = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(under(row, &status("Seccomp"), pod, json!({})), ["Seccomp: 2"]);
}

fn seccomp_unconfined(row: &Row<'_>) {
    let own = json!({"seccompProfile": {"type": "Unconfined"}});
    assert_eq!(under(row, &status("Seccomp"), json!({}), own), ["Seccomp: 0"]);
}

fn seccomp_localhost(row: &Row<'_>) {
    let dir = row.world.dir().join("data/seccomp/rows");
    fs::create_dir_all(&dir).expect("a folder can be made");
    // Everything is allowed but to make folders.
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]});
    fs::write(dir.join("no-mkdir.json"), profile.to_string()).expect("a file can be written");
    let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "rows/no-mkdir.json"}});
    assert_eq!(under(row, "mkdir /tmp/x 2>/dev/null || echo refused", json!({}), own), ["refused"]);
}

fn seccomp_localhost_missing(row: &Row<'_>) {
    let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}});
    row.shell("p", STAY, json!({"securityContext": own}), json!({}));
    config_error(row, "none.json");
}

fn app_armor_unconfined(row: &Row<'_>) {
    row.shell("p", STAY, json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}), json!({}));
    row.ready("p");
    let options = row.inspect("p", "main")["HostConfig"]["SecurityOpt"].clone();
    assert!(options.as_array().is_some_and(|all| all.contains(&json!("apparmor=unconfined"))), "{options}");
}

fn app_armor_runtime_default(row: &Row<'_>) {
    row.shell("p", STAY, json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}), json!({}));
    row.ready("p");
    let options = row.inspect("p", "main")["HostConfig"]["SecurityOpt"].to_string();
    assert!(!options.contains("apparmor"), "{options}");
}

fn se_linux_options(row: &Row<'_>) {
    let options = json!({"seLinuxOptions": {"level": "s0:c1,c2", "type": "spc_t"}});
    row.shell("p", STAY, json!({"securityContext": options}), json!({}));
    row.ready("p");
    let asked = row.inspect("p", "main")["HostConfig"]["SecurityOpt"].clone();
    let asked = asked.as_array().cloned().unwrap_or_default();
    assert!(asked.contains(&json!("label=level:s0:c1,c2")) && asked.contains(&json!("label=type:spc_t")), "{asked:?}");
}

fn proc_mount_default(row: &Row<'_>) {
    let seen = under(row, "echo x > /proc/sys/kernel/core_pattern && echo open", json!({}), json!({}));
    assert!(!seen.contains(&"open".to_owned()), "{seen:?}");
    let host = row.inspect("p", "main")["HostConfig"].clone();
    assert!(host["MaskedPaths"].to_string().contains("/proc/kcore"), "{host}");
    assert!(host["ReadonlyPaths"].to_string().contains("/proc/sys"), "{host}");
}

fn sysctl_safe(row: &Row<'_>) {
    let pod = json!({"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"},
        {"name": "kernel.shm_rmid_forced", "value": "1"}]});
    let line = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(under(row, line, pod, json!({})), ["80", "1"]);
}

#[track_caller]
fn forbidden(row: &Row<'_>, spec: Value, words: &str) {
    row.shell("p", "touch /shared/ran", json!({}), spec);
    let pod = row.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "SysctlForbidden");
    assert!(text(&pod["status"]["message"]).contains(words), "{}", pod["status"]);
    assert!(!row.shared.0.join("ran").exists());
}

fn sysctl_unsafe(row: &Row<'_>) {
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    forbidden(row, spec, "\"kernel.msgmax\" not allowlisted");
}

fn sysctl_net_with_host_network(row: &Row<'_>) {
    let sysctls = json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}]);
    let spec = json!({"hostNetwork": true, "securityContext": {"sysctls": sysctls}});
    if row.world.api() == Api::Cluster {
        // A kube-apiserver refuses such a pod itself, so that only pods of the node's own folder come to the node.
        let told = row.kubectl.output(&["apply", "-f", "-"], &row.shared.pod("p", one("true", json!({}), spec)));
        assert!(!told.ok && told.err.contains("may not be specified when 'hostNetwork' is true"), "{}", told.err);
        return;
    }
    forbidden(row, spec, "not allowed with host net enabled");
}

fn score(row: &Row<'_>, resources: Value) -> i64 {
    row.shell("p", STAY, json!({"resources": resources}), json!({}));
    row.ready("p");
    row.inspect("p", "main")["HostConfig"]["OomScoreAdj"].as_i64().expect("a number")
}

fn oom_score_adj_best_effort(row: &Row<'_>) {
    assert_eq!(score(row, json!({})), 1000);
}

fn oom_score_adj_burstable(row: &Row<'_>) {
    assert_eq!(score(row, json!({"requests": {"cpu": "10m"}})), 999);
}

fn oom_score_adj_guaranteed(row: &Row<'_>) {
    // Without the right to set negative scores the node sets none.
    let own = fs::read_to_string("/proc/self/status").expect("procfs is there");
    let resource =
        own.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    let allowed = resource.is_some_and(|bits| bits & (1 << 24) != 0);
    let amounts = json!({"cpu": "10m", "memory": "16Mi"});
    assert_eq!(score(row, json!({"limits": amounts, "requests": amounts})), if allowed { -997 } else { 0 });
}
