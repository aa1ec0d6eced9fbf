//! In-place resize of a running pod.

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{condition, container_status, shell},
};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    resize_cpu_in_place,
    resize_memory_in_place,
    resize_memory_swap_follows,
    resize_restart_container,
    resize_several_containers_at_once,
    resize_infeasible,
    resize_of_a_memory_request_alone,
    resize_deferred_until_resources_are_free,
    resize_moves_generation,
    resize_of_the_pod_cgroup,
    resize_of_the_pod_as_a_whole,
];

fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn running(case: &Case<'_>, container: Value) -> Value {
    case.shell("p", SLEEP_FOREVER, container, json!({}));
    case.wait_ready("p")
}

fn resize(case: &Case<'_>, pod: &str, containers: &[(&str, Value)]) {
    let all: Vec<Value> = containers.iter().map(|(name, r)| json!({"name": name, "resources": r})).collect();
    let patch = json!({"spec": {"containers": all}}).to_string();
    let _ = case.kubectl(&["patch", "pod", pod, "--subresource", "resize", "-p", &patch]);
}

/// Since 1.36 kube-apiserver itself checks the node's allocatable, so that its nodes never see such a resize.
#[track_caller]
fn refused_at_once(case: &Case<'_>, wish: &Value, what: &str) {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": wish}]}}).to_string();
    let output = case.kubectl.output(&["patch", "pod", "p", "--subresource", "resize", "-p", &patch], "");
    let words = format!("node didn't have enough allocatable resources: {what}");
    assert!(!output.ok && output.err.contains(&words), "{}{}", output.out, output.err);
}

#[track_caller]
fn has(case: &Case<'_>, wanted: &Value) -> Value {
    case.wait("p", "has what it was given", |p| container_status(p)["resources"] == *wanted)
}

fn resize_cpu_in_place(case: &Case<'_>) {
    let before = running(case, json!({"resources": resources("50m", "16Mi")}));
    resize(case, "p", &[("main", resources("100m", "16Mi"))]);
    let after = has(case, &resources("100m", "16Mi"));
    assert_eq!(container_status(&before)["containerID"], container_status(&after)["containerID"]);
    let held = case.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&held["CpuQuota"], &held["CpuShares"]), (&json!(10_000), &json!(102)));
    case.wait_for_event("p", "ResizeStarted");
    case.wait_for_event("p", "ResizeCompleted");
}

fn resize_memory_in_place(case: &Case<'_>) {
    let before = running(case, json!({"resources": resources("50m", "16Mi")}));
    resize(case, "p", &[("main", resources("50m", "24Mi"))]);
    let after = has(case, &resources("50m", "24Mi"));
    assert_eq!(container_status(&before)["containerID"], container_status(&after)["containerID"]);
    assert_eq!(container_status(&after)["allocatedResources"]["memory"], "24Mi");
    // Read inside the container, in either cgroup version.
    let id = case.ids("p", "main")[0].clone();
    let line = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max";
    assert_eq!(case.testbed.docker(&["exec", &id, "sh", "-c", line]).trim(), "25165824");
}

fn resize_memory_swap_follows(case: &Case<'_>) {
    running(case, json!({"resources": resources("50m", "16Mi")}));
    resize(case, "p", &[("main", resources("50m", "32Mi"))]);
    has(case, &resources("50m", "32Mi"));
    let held = case.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&held["Memory"], &held["MemorySwap"]), (&json!(32 << 20), &json!(32 << 20)));
}

fn resize_restart_container(case: &Case<'_>) {
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let before = running(case, json!({"resources": resources("50m", "16Mi"), "resizePolicy": policy}));
    resize(case, "p", &[("main", resources("50m", "24Mi"))]);
    let after = case.wait("p", "runs again with more", |p| {
        container_status(p)["restartCount"] == 1 && container_status(p)["resources"]["limits"]["memory"] == "24Mi"
    });
    assert_ne!(container_status(&before)["containerID"], container_status(&after)["containerID"]);
}

fn resize_several_containers_at_once(case: &Case<'_>) {
    let one =
        |name: &str| json!({"name": name, "command": shell(SLEEP_FOREVER), "resources": resources("50m", "16Mi")});
    case.pod("p", json!({"containers": [one("a"), one("b"), one("c")]}));
    case.wait_ready("p");
    resize(
        case,
        "p",
        &[("a", resources("60m", "24Mi")), ("b", resources("70m", "16Mi")), ("c", resources("50m", "32Mi"))],
    );
    case.wait("p", "all have what they were given", |p| {
        let is = |at: usize, wanted: Value| p["status"]["containerStatuses"][at]["resources"] == wanted;
        is(0, resources("60m", "24Mi")) && is(1, resources("70m", "16Mi")) && is(2, resources("50m", "32Mi"))
    });
}

fn resize_infeasible(case: &Case<'_>) {
    running(case, json!({"resources": resources("50m", "16Mi")}));
    refused_at_once(case, &resources("4000", "16Mi"), "cpu");
}

fn resize_deferred_until_resources_are_free(case: &Case<'_>) {
    // Two pods that fit one after the other, but not at the same time.
    let node = case.kubectl.json(&["node", "node"]).expect("there is a node");
    let cores: u64 = text(&node["status"]["allocatable"]["cpu"]).parse().expect("whole cores");
    let half = json!({"requests": {"cpu": format!("{}m", cores * 500)}});
    let most = json!({"requests": {"cpu": format!("{}m", cores * 600)}});
    case.shell("first", SLEEP_FOREVER, json!({"resources": half}), json!({}));
    case.wait_ready("first");
    running(case, json!({"resources": {"requests": {"cpu": "10m"}}}));
    resize(case, "p", &[("main", most)]);
    case.wait("p", "is put off", |p| condition(p, "PodResizePending")["reason"] == "Deferred");
    case.wait_for_event("p", "ResizeDeferred");
    let _ = case.kubectl(&["delete", "pod", "first"]);
    case.wait("p", "has what it was given", |p| {
        container_status(p)["resources"]["requests"]["cpu"] == format!("{}m", cores * 600)
            && condition(p, "PodResizePending").is_null()
    });
}

fn resize_moves_generation(case: &Case<'_>) {
    running(case, json!({"resources": resources("50m", "16Mi")}));
    resize(case, "p", &[("main", resources("60m", "16Mi"))]);
    case.wait("p", "is seen in its second form", |p| {
        p["metadata"]["generation"] == 2 && p["status"]["observedGeneration"] == 2
    });
}

fn resize_of_the_pod_cgroup(case: &Case<'_>) {
    let pod = running(case, json!({"resources": resources("50m", "16Mi")}));
    let uid = text(&pod["metadata"]["uid"]).to_owned();
    resize(case, "p", &[("main", resources("100m", "24Mi"))]);
    eventually(DEFAULT_TIMEOUT, "the pod is held to the new sum", || {
        let held = (case.pod_cgroup(&uid, "", "cpu quota"), case.pod_cgroup(&uid, "", "memory limit"));
        anyhow::ensure!(held == ("10000".to_owned(), (24 << 20).to_string()), "{held:?}");
        Ok(())
    });
}

/// A container without a limit of its own is held to the pod's, and follows it.
fn resize_of_the_pod_as_a_whole(case: &Case<'_>) {
    let whole = |cpu: &str, memory: &str| json!({"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"cpu": cpu, "memory": memory}});
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"resources": whole("200m", "64Mi")}));
    let before = case.wait_ready("p");
    let uid = text(&before["metadata"]["uid"]).to_owned();
    let held = || {
        let is = case.inspect("p", "main")["HostConfig"].clone();
        let of_pod = ["memory limit", "cpu quota"].map(|what| case.pod_cgroup(&uid, "/burstable", what));
        (is["Memory"].to_string(), is["CpuQuota"].to_string(), of_pod)
    };
    let wanted = |limit: i64, quota: i64| {
        let (limit, quota) = (limit.to_string(), quota.to_string());
        (limit.clone(), quota.clone(), [limit, quota])
    };
    case.wait("p", "shows what it has", |p| p["status"]["resources"] == whole("200m", "64Mi"));
    assert_eq!(held(), wanted(64 << 20, 20_000));
    // More of one, less of the other.
    let patch = json!({"spec": {"resources": whole("100m", "96Mi")}}).to_string();
    let _ = case.kubectl(&["patch", "pod", "p", "--subresource", "resize", "-p", &patch]);
    case.wait_for_event("p", "ResizeStarted");
    let after = case.wait("p", "has what it was given", |p| {
        p["status"]["resources"] == whole("100m", "96Mi") && condition(p, "PodResizeInProgress").is_null()
    });
    assert_eq!(after["status"]["allocatedResources"], whole("", "")["requests"]);
    assert_eq!(container_status(&before)["containerID"], container_status(&after)["containerID"]);
    assert_eq!(held(), wanted(96 << 20, 10_000));
    case.wait_for_event("p", "ResizeCompleted");
}

/// Docker has no memory requests: the node allocates them itself.
fn resize_of_a_memory_request_alone(case: &Case<'_>) {
    let asks = |memory: &str| json!({"requests": {"memory": memory}, "limits": {"memory": "4Ti"}});
    let before = running(case, json!({"resources": asks("16Mi")}));
    refused_at_once(case, &asks("3Ti"), "memory");
    resize(case, "p", &[("main", asks("32Mi"))]);
    let after =
        case.wait("p", "has what it asks for", |p| container_status(p)["allocatedResources"]["memory"] == "32Mi");
    assert_eq!(container_status(&before)["containerID"], container_status(&after)["containerID"]);
    case.wait_for_event("p", "ResizeCompleted");
}
