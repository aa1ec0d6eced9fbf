//! What containers and pods are held to.

use serde_json::{Value, json};
use windlass_tests::sharing::shell;

use crate::row::{Row, STAY, text};

crate::rows![
    cpu_shares_of_the_request,
    cpu_shares_of_the_limit,
    cpu_shares_at_least_two,
    cpu_quota,
    cpu_quota_at_least_one_millisecond,
    memory_and_no_swap,
    no_limits,
    quality_of_service_guaranteed,
    quality_of_service_burstable,
    quality_of_service_best_effort,
    pod_cgroup_is_the_sum,
    pod_cgroup_without_a_limit_unless_all_have_one,
    pod_cgroup_counts_sidecars,
];

fn held(row: &Row<'_>, resources: Value) -> Value {
    row.shell("p", STAY, json!({"resources": resources}), json!({}));
    row.ready("p");
    row.inspect("p", "main")["HostConfig"].clone()
}

fn cpu_shares_of_the_request(row: &Row<'_>) {
    assert_eq!(held(row, json!({"requests": {"cpu": "250m"}}))["CpuShares"], 256);
}

fn cpu_shares_of_the_limit(row: &Row<'_>) {
    assert_eq!(held(row, json!({"limits": {"cpu": "100m"}}))["CpuShares"], 102);
}

fn cpu_shares_at_least_two(row: &Row<'_>) {
    assert_eq!(held(row, json!({"requests": {"cpu": "1m"}}))["CpuShares"], 2);
}

fn cpu_quota(row: &Row<'_>) {
    let held = held(row, json!({"limits": {"cpu": "250m"}}));
    assert_eq!((&held["CpuQuota"], &held["CpuPeriod"]), (&json!(25_000), &json!(100_000)));
}

fn cpu_quota_at_least_one_millisecond(row: &Row<'_>) {
    assert_eq!(held(row, json!({"limits": {"cpu": "5m"}}))["CpuQuota"], 1000);
}

fn memory_and_no_swap(row: &Row<'_>) {
    let held = held(row, json!({"limits": {"memory": "32Mi"}}));
    assert_eq!((&held["Memory"], &held["MemorySwap"]), (&json!(32 << 20), &json!(32 << 20)));
}

fn no_limits(row: &Row<'_>) {
    let held = held(row, json!({}));
    assert_eq!((&held["Memory"], &held["CpuQuota"], &held["CpuShares"]), (&json!(0), &json!(0), &json!(2)));
}

/// The class that a pod's status shows, and the parent of its cgroups.
fn class(row: &Row<'_>, resources: Value) -> (String, String) {
    row.shell("p", STAY, json!({"resources": resources}), json!({}));
    let pod = row.ready("p");
    let parent = row.inspect("p", "main")["HostConfig"]["CgroupParent"].clone();
    let uid = text(&pod["metadata"]["uid"]);
    let parent = text(&parent).replace(uid, "UID").replace(&uid.replace('-', "_"), "UID");
    (text(&pod["status"]["qosClass"]).to_owned(), parent)
}

#[track_caller]
fn is(class: (String, String), name: &str, folder: &str) {
    let slice = if folder.is_empty() { String::new() } else { format!("-{folder}") };
    let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
    assert_eq!(class.0, name);
    // By either driver of cgroups.
    assert!(
        [format!("/kubepods{folder}/podUID"), format!("kubepods{slice}-podUID.slice")].contains(&class.1),
        "{}",
        class.1
    );
}

fn quality_of_service_guaranteed(row: &Row<'_>) {
    is(class(row, json!({"limits": {"cpu": "10m", "memory": "16Mi"}})), "Guaranteed", "");
}

fn quality_of_service_burstable(row: &Row<'_>) {
    is(class(row, json!({"requests": {"cpu": "10m"}})), "Burstable", "burstable");
}

fn quality_of_service_best_effort(row: &Row<'_>) {
    is(class(row, json!({})), "BestEffort", "besteffort");
}

fn limited(name: &str, resources: Value) -> Value {
    json!({"name": name, "command": shell(STAY), "resources": resources})
}

fn cgroup(row: &Row<'_>, class: &str, spec: Value) -> [String; 3] {
    row.pod("p", spec);
    let pod = row.ready("p");
    let uid = text(&pod["metadata"]["uid"]);
    ["memory limit", "cpu quota", "cpu shares"].map(|what| row.pod_cgroup(uid, class, what))
}

fn pod_cgroup_is_the_sum(row: &Row<'_>) {
    let each = json!({"limits": {"cpu": "50m", "memory": "16Mi"}});
    let told = cgroup(row, "", json!({"containers": [limited("a", each.clone()), limited("b", each)]}));
    assert_eq!(told[..2], [(32 << 20).to_string(), "10000".to_owned()]);
}

fn pod_cgroup_without_a_limit_unless_all_have_one(row: &Row<'_>) {
    let containers =
        json!([limited("a", json!({"limits": {"cpu": "50m", "memory": "16Mi"}})), limited("b", json!({}))]);
    let told = cgroup(row, "/burstable", json!({"containers": containers}));
    // No limit is -1, a very large number, or the word `max`.
    let limited = |text: &str| text.parse::<i64>().is_ok_and(|n| n > 0 && n < 1 << 50);
    assert!(!limited(&told[0]) && !limited(&told[1]), "{told:?}");
}

fn pod_cgroup_counts_sidecars(row: &Row<'_>) {
    let each = json!({"limits": {"cpu": "50m", "memory": "16Mi"}});
    let mut side = limited("side", each.clone());
    side["restartPolicy"] = json!("Always");
    let told = cgroup(row, "", json!({"initContainers": [side], "containers": [limited("main", each)]}));
    assert_eq!(told[..2], [(32 << 20).to_string(), "10000".to_owned()]);
}
