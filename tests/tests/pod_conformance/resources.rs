//! Requests and limits of containers and pods.

use serde_json::{Value, json};
use windlass_tests::shared_dir::shell;

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
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

fn host_config(case: &Case<'_>, resources: Value) -> Value {
    case.shell("p", SLEEP_FOREVER, json!({"resources": resources}), json!({}));
    case.wait_ready("p");
    case.inspect("p", "main")["HostConfig"].clone()
}

fn cpu_shares_of_the_request(case: &Case<'_>) {
    assert_eq!(host_config(case, json!({"requests": {"cpu": "250m"}}))["CpuShares"], 256);
}

fn cpu_shares_of_the_limit(case: &Case<'_>) {
    assert_eq!(host_config(case, json!({"limits": {"cpu": "100m"}}))["CpuShares"], 102);
}

fn cpu_shares_at_least_two(case: &Case<'_>) {
    assert_eq!(host_config(case, json!({"requests": {"cpu": "1m"}}))["CpuShares"], 2);
}

fn cpu_quota(case: &Case<'_>) {
    let host_config = host_config(case, json!({"limits": {"cpu": "250m"}}));
    assert_eq!((&host_config["CpuQuota"], &host_config["CpuPeriod"]), (&json!(25_000), &json!(100_000)));
}

fn cpu_quota_at_least_one_millisecond(case: &Case<'_>) {
    assert_eq!(host_config(case, json!({"limits": {"cpu": "5m"}}))["CpuQuota"], 1000);
}

fn memory_and_no_swap(case: &Case<'_>) {
    let host_config = host_config(case, json!({"limits": {"memory": "32Mi"}}));
    assert_eq!((&host_config["Memory"], &host_config["MemorySwap"]), (&json!(32 << 20), &json!(32 << 20)));
}

fn no_limits(case: &Case<'_>) {
    let host_config = host_config(case, json!({}));
    assert_eq!(
        (&host_config["Memory"], &host_config["CpuQuota"], &host_config["CpuShares"]),
        (&json!(0), &json!(0), &json!(2))
    );
}

/// The QoS class in a pod's status, and the parent of its cgroups.
fn class(case: &Case<'_>, resources: Value) -> (String, String) {
    case.shell("p", SLEEP_FOREVER, json!({"resources": resources}), json!({}));
    let pod = case.wait_ready("p");
    let parent = case.inspect("p", "main")["HostConfig"]["CgroupParent"].clone();
    let uid = text(&pod["metadata"]["uid"]);
    let parent = text(&parent).replace(uid, "UID").replace(&uid.replace('-', "_"), "UID");
    (text(&pod["status"]["qosClass"]).to_owned(), parent)
}

#[track_caller]
fn is(class: (String, String), name: &str, folder: &str) {
    let slice = if folder.is_empty() { String::new() } else { format!("-{folder}") };
    let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
    assert_eq!(class.0, name);
    // For either cgroup driver.
    assert!(
        [format!("/kubepods{folder}/podUID"), format!("kubepods{slice}-podUID.slice")].contains(&class.1),
        "{}",
        class.1
    );
}

fn quality_of_service_guaranteed(case: &Case<'_>) {
    is(class(case, json!({"limits": {"cpu": "10m", "memory": "16Mi"}})), "Guaranteed", "");
}

fn quality_of_service_burstable(case: &Case<'_>) {
    is(class(case, json!({"requests": {"cpu": "10m"}})), "Burstable", "burstable");
}

fn quality_of_service_best_effort(case: &Case<'_>) {
    is(class(case, json!({})), "BestEffort", "besteffort");
}

fn limited(name: &str, resources: Value) -> Value {
    json!({"name": name, "command": shell(SLEEP_FOREVER), "resources": resources})
}

fn cgroup(case: &Case<'_>, class: &str, spec: Value) -> [String; 3] {
    case.pod("p", spec);
    let pod = case.wait_ready("p");
    let uid = text(&pod["metadata"]["uid"]);
    ["memory limit", "cpu quota", "cpu shares"].map(|what| case.pod_cgroup(uid, class, what))
}

fn pod_cgroup_is_the_sum(case: &Case<'_>) {
    let each = json!({"limits": {"cpu": "50m", "memory": "16Mi"}});
    let output = cgroup(case, "", json!({"containers": [limited("a", each.clone()), limited("b", each)]}));
    assert_eq!(output[..2], [(32 << 20).to_string(), "10000".to_owned()]);
}

fn pod_cgroup_without_a_limit_unless_all_have_one(case: &Case<'_>) {
    let containers =
        json!([limited("a", json!({"limits": {"cpu": "50m", "memory": "16Mi"}})), limited("b", json!({}))]);
    let output = cgroup(case, "/burstable", json!({"containers": containers}));
    // Without a limit it is -1, a very large number, or the word `max`.
    let limited = |text: &str| text.parse::<i64>().is_ok_and(|n| n > 0 && n < 1 << 50);
    assert!(!limited(&output[0]) && !limited(&output[1]), "{output:?}");
}

fn pod_cgroup_counts_sidecars(case: &Case<'_>) {
    let each = json!({"limits": {"cpu": "50m", "memory": "16Mi"}});
    let mut side = limited("side", each.clone());
    side["restartPolicy"] = json!("Always");
    let output = cgroup(case, "", json!({"initContainers": [side], "containers": [limited("main", each)]}));
    assert_eq!(output[..2], [(32 << 20).to_string(), "10000".to_owned()]);
}
