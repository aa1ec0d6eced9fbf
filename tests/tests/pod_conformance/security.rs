//! Security contexts: users, groups, capabilities.

use std::fs;

use serde_json::{Value, json};
use windlass_tests::skip;

use crate::case::{Case, SLEEP_FOREVER, one, text};

crate::cases![
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

/// The output of a line with a pod's and a container's security context.
#[track_caller]
fn under(case: &Case<'_>, line: &str, pod: Value, own: Value) -> Vec<String> {
    let lines = case.run("p", line, json!({"securityContext": own}), json!({"securityContext": pod}));
    lines.into_iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn status(field: &str) -> String {
    format!("grep ^{field}: /proc/self/status")
}

fn run_as_user_of_the_pod(case: &Case<'_>) {
    assert_eq!(under(case, "id -u; id -g", json!({"runAsUser": 1000}), json!({})), ["1000", "0"]);
}

fn run_as_user_of_the_container_wins(case: &Case<'_>) {
    assert_eq!(under(case, "id -u", json!({"runAsUser": 1000}), json!({"runAsUser": 2000})), ["2000"]);
}

/// A pod with an image that sets another user.
fn of_image(case: &Case<'_>, user: &str, context: Value) {
    let name = format!("rows/user-{}:1", user.replace(':', "-"));
    case.image(&name, &format!("USER {user}"));
    let line = "id -u > /shared/.id; id -g >> /shared/.id; mv /shared/.id /shared/id; exec sleep 100000";
    let container = json!({"image": name, "imagePullPolicy": "Never", "securityContext": context});
    case.shell("p", line, container, json!({}));
}

fn run_as_user_of_the_image(case: &Case<'_>) {
    of_image(case, "www-data", json!({}));
    assert_eq!(case.output("id"), ["33", "33"]);
}

fn run_as_group(case: &Case<'_>) {
    assert_eq!(
        under(case, "id -u; id -g", json!({"runAsUser": 1000, "runAsGroup": 2000}), json!({})),
        ["1000", "2000"]
    );
}

fn run_as_group_without_user(case: &Case<'_>) {
    of_image(case, "www-data", json!({"runAsGroup": 2000}));
    assert_eq!(case.output("id"), ["33", "2000"]);
}

#[track_caller]
fn config_error(case: &Case<'_>, words: &str) {
    let waiting = case.wait_waiting("p", "CreateContainerConfigError");
    assert!(text(&waiting["message"]).contains(words), "{waiting}");
}

fn run_as_non_root_and_image_of_root(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"securityContext": {"runAsNonRoot": true}}), json!({}));
    config_error(case, "container has runAsNonRoot and image will run as root");
}

fn run_as_non_root_and_uid_zero(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}));
    config_error(case, "container's runAsUser breaks non-root policy");
}

fn run_as_non_root_and_user_by_name(case: &Case<'_>) {
    of_image(case, "www-data", json!({"runAsNonRoot": true}));
    config_error(case, "image has non-numeric user (www-data), cannot verify user is non-root");
}

fn run_as_non_root_and_numeric_user(case: &Case<'_>) {
    of_image(case, "33", json!({"runAsNonRoot": true}));
    case.wait_ready("p");
}

fn supplemental_groups(case: &Case<'_>) {
    let groups = under(case, "id -G", json!({"runAsUser": 1000, "supplementalGroups": [3000, 3001]}), json!({}));
    for group in ["3000", "3001"] {
        assert!(groups[0].split(' ').any(|g| g == group), "{groups:?}");
    }
}

fn fs_group_is_a_group_of_the_process(case: &Case<'_>) {
    let groups = under(case, "id -G", json!({"runAsUser": 1000, "fsGroup": 4000}), json!({}));
    assert!(groups[0].split(' ').any(|g| g == "4000"), "{groups:?}");
}

fn fs_group_on_empty_dir(case: &Case<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}]});
    let spec = json!({"securityContext": {"runAsUser": 1000, "fsGroup": 4000},
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]});
    let line = "stat -c '%a %g' /e /m; touch /e/x /m/x; stat -c %g /e/x /m/x";
    assert_eq!(case.run("p", line, container, spec), ["2777 4000", "2777 4000", "4000", "4000"]);
}

fn fs_group_on_files_of_objects(case: &Case<'_>) {
    let _ = case.kubectl(&["create", "configmap", "map", "--from-literal=a=1"]);
    let _ = case.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=b=2"]);
    let downward = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let volumes = json!([{"name": "c", "configMap": {"name": "map", "defaultMode": 0o400}},
        {"name": "s", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "d", "downwardAPI": {"items": downward, "defaultMode": 0o400}},
        {"name": "p", "projected": {"defaultMode": 0o400, "sources": [{"configMap": {"name": "map"}}]}}]);
    let mounts: Vec<Value> =
        ["c", "s", "d", "p"].iter().map(|n| json!({"name": n, "mountPath": format!("/v/{n}")})).collect();
    let spec = json!({"volumes": volumes, "securityContext": {"runAsUser": 1000, "fsGroup": 4000}});
    let line = "for f in c/a s/b d/name p/a; do stat -L -c '%a %g' /v/$f; cat /v/$f > /dev/null || echo closed; done";
    assert_eq!(case.run("p", line, json!({"volumeMounts": mounts}), spec), ["440 4000"; 4]);
}

fn fs_group_not_on_host_path(case: &Case<'_>) {
    // The /shared directory is such a volume.
    let seen = under(case, "stat -c %g /shared", json!({"fsGroup": 4000}), json!({}));
    assert_eq!(seen, ["0"]);
}

fn fs_group_change_policy_on_root_mismatch(case: &Case<'_>) {
    // A volume whose root already matches is left unchanged recursively.
    let data = case.testbed.dir().join("fs-group-data");
    fs::create_dir_all(&data).expect("a directory can be created");
    fs::write(data.join("file"), "").expect("a file can be written");
    let _ = case.testbed.sh(&format!("chown :4000 {0}; chmod 2775 {0}; chown :7 {0}/file", data.display()));
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rows-fs-group"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": data},
        "claimRef": {"namespace": case.namespace, "name": "claim"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}}}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    case.apply(&[volume, claim]);
    let look = |name: &str, policy: &str| {
        let spec = json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}],
            "securityContext": {"fsGroup": 4000, "fsGroupChangePolicy": policy}});
        case.run(name, "stat -c %g /d/file", json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]}), spec)
    };
    assert_eq!(look("mismatch", "OnRootMismatch"), ["7"]);
    // While another pod uses it, a local volume's group is not changed.
    let _ = case.kubectl(&["delete", "pod", "mismatch"]);
    assert_eq!(look("always", "Always"), ["4000"]);
    let _ = case.kubectl(&["delete", "pod", "always"]);
    let _ = case.kubectl(&["delete", "pvc", "claim"]);
    let _ = case.kubectl(&["delete", "pv", "rows-fs-group"]);
}

fn privileged(case: &Case<'_>) {
    // A machine without some capability cannot start it: the request to Docker is still visible.
    let spec = json!({"restartPolicy": "Never"});
    case.shell("p", "exit 0", json!({"securityContext": {"privileged": true}}), spec);
    case.wait("p", "is over", |p| ["Succeeded", "Failed"].contains(&text(&p["status"]["phase"])));
    let host = case.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&host["Privileged"], &host["MaskedPaths"]), (&json!(true), &Value::Null), "{host}");
}

fn bits(lines: &[String]) -> u64 {
    u64::from_str_radix(lines[0].trim_start_matches("CapEff: "), 16).expect("the kernel writes numbers")
}

const NET_ADMIN: u64 = 1 << 12;
const CHOWN: u64 = 1;

fn capabilities_add(case: &Case<'_>) {
    let own = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let has = bits(&under(case, &status("CapEff"), json!({}), own));
    assert!(has & NET_ADMIN != 0 && has & CHOWN != 0, "{has:x}");
}

fn capabilities_drop(case: &Case<'_>) {
    let has = bits(&under(case, &status("CapEff"), json!({}), json!({"capabilities": {"drop": ["CHOWN"]}})));
    assert!(has & CHOWN == 0 && has != 0, "{has:x}");
}

fn capabilities_drop_all_add_one(case: &Case<'_>) {
    let own = json!({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}});
    assert_eq!(bits(&under(case, &status("CapEff"), json!({}), own)), CHOWN);
}

fn read_only_root_filesystem(case: &Case<'_>) {
    let line = "touch /x 2>/dev/null || echo read-only";
    assert_eq!(under(case, line, json!({}), json!({"readOnlyRootFilesystem": true})), ["read-only"]);
}

fn allow_privilege_escalation_false(case: &Case<'_>) {
    let own = json!({"allowPrivilegeEscalation": false});
    assert_eq!(under(case, &status("NoNewPrivs"), json!({}), own), ["NoNewPrivs: 1"]);
}

fn allow_privilege_escalation_unset(case: &Case<'_>) {
    assert_eq!(under(case, &status("NoNewPrivs"), json!({}), json!({})), ["NoNewPrivs: 0"]);
}

fn seccomp_runtime_default(case: &Case<'_>) {
    let pod = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(under(case, &status("Seccomp"), pod, json!({})), ["Seccomp: 2"]);
}

fn seccomp_unconfined(case: &Case<'_>) {
    let own = json!({"seccompProfile": {"type": "Unconfined"}});
    assert_eq!(under(case, &status("Seccomp"), json!({}), own), ["Seccomp: 0"]);
}

fn seccomp_localhost(case: &Case<'_>) {
    let dir = case.testbed.dir().join("data/seccomp/rows");
    fs::create_dir_all(&dir).expect("a directory can be created");
    // The profile allows everything but mkdir.
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]});
    fs::write(dir.join("no-mkdir.json"), profile.to_string()).expect("a file can be written");
    let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "rows/no-mkdir.json"}});
    assert_eq!(under(case, "mkdir /tmp/x 2>/dev/null || echo refused", json!({}), own), ["refused"]);
}

fn seccomp_localhost_missing(case: &Case<'_>) {
    let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}});
    case.shell("p", SLEEP_FOREVER, json!({"securityContext": own}), json!({}));
    config_error(case, "none.json");
}

fn app_armor_unconfined(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}), json!({}));
    case.wait_ready("p");
    let options = case.inspect("p", "main")["HostConfig"]["SecurityOpt"].clone();
    assert!(options.as_array().is_some_and(|all| all.contains(&json!("apparmor=unconfined"))), "{options}");
}

fn app_armor_runtime_default(case: &Case<'_>) {
    case.shell(
        "p",
        SLEEP_FOREVER,
        json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}),
        json!({}),
    );
    // As kubelet looks for it.
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if !enabled.is_ok_and(|enabled| enabled.starts_with('Y')) {
        let status = case.wait_phase("p", "Failed")["status"].clone();
        let why = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
        assert_eq!((&status["reason"], &status["message"]), (&json!("AppArmor"), &json!(why)));
        skip("apparmor", "the kernel has no AppArmor: that a profile is enforced was not seen");
        return;
    }
    case.wait_ready("p");
    let options = case.inspect("p", "main")["HostConfig"]["SecurityOpt"].to_string();
    assert!(!options.contains("apparmor"), "{options}");
}

fn se_linux_options(case: &Case<'_>) {
    let options = json!({"seLinuxOptions": {"level": "s0:c1,c2", "type": "spc_t"}});
    case.shell("p", SLEEP_FOREVER, json!({"securityContext": options}), json!({}));
    case.wait_ready("p");
    let asked = case.inspect("p", "main")["HostConfig"]["SecurityOpt"].clone();
    let asked = asked.as_array().cloned().unwrap_or_default();
    assert!(asked.contains(&json!("label=level:s0:c1,c2")) && asked.contains(&json!("label=type:spc_t")), "{asked:?}");
}

fn proc_mount_default(case: &Case<'_>) {
    let seen = under(case, "echo x > /proc/sys/kernel/core_pattern && echo open", json!({}), json!({}));
    assert!(!seen.contains(&"open".to_owned()), "{seen:?}");
    let host = case.inspect("p", "main")["HostConfig"].clone();
    assert!(host["MaskedPaths"].to_string().contains("/proc/kcore"), "{host}");
    assert!(host["ReadonlyPaths"].to_string().contains("/proc/sys"), "{host}");
}

fn sysctl_safe(case: &Case<'_>) {
    let pod = json!({"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"},
        {"name": "kernel.shm_rmid_forced", "value": "1"}]});
    let line = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(under(case, line, pod, json!({})), ["80", "1"]);
}

#[track_caller]
fn forbidden(case: &Case<'_>, spec: Value, words: &str) {
    case.shell("p", "touch /shared/ran", json!({}), spec);
    let pod = case.wait_phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "SysctlForbidden");
    assert!(text(&pod["status"]["message"]).contains(words), "{}", pod["status"]);
    assert!(!case.shared.0.join("ran").exists());
}

fn sysctl_unsafe(case: &Case<'_>) {
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    forbidden(case, spec, "\"kernel.msgmax\" not allowlisted");
}

fn sysctl_net_with_host_network(case: &Case<'_>) {
    let sysctls = json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}]);
    let spec = json!({"hostNetwork": true, "securityContext": {"sysctls": sysctls}});
    // The API rejects such a pod itself, so that only static pods reach the node.
    let output = case.kubectl.output(&["apply", "-f", "-"], &case.shared.pod("p", one("true", json!({}), spec)));
    assert!(!output.ok && output.err.contains("may not be specified when 'hostNetwork' is true"), "{}", output.err);
}

fn score(case: &Case<'_>, resources: Value) -> i64 {
    case.shell("p", SLEEP_FOREVER, json!({"resources": resources}), json!({}));
    case.wait_ready("p");
    case.inspect("p", "main")["HostConfig"]["OomScoreAdj"].as_i64().expect("a number")
}

fn oom_score_adj_best_effort(case: &Case<'_>) {
    assert_eq!(score(case, json!({})), 1000);
}

fn oom_score_adj_burstable(case: &Case<'_>) {
    assert_eq!(score(case, json!({"requests": {"cpu": "10m"}})), 999);
}

fn oom_score_adj_guaranteed(case: &Case<'_>) {
    // Without the capability for negative scores the node sets none.
    let own = fs::read_to_string("/proc/self/status").expect("procfs is there");
    let resource =
        own.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    let allowed = resource.is_some_and(|bits| bits & (1 << 24) != 0);
    let amounts = json!({"cpu": "10m", "memory": "16Mi"});
    assert_eq!(score(case, json!({"limits": amounts, "requests": amounts})), if allowed { -997 } else { 0 });
}
