//! Resources that change while a pod runs.

use serde_json::{Value, json};
use windlass_tests::{
    PATIENCE,
    cluster::Api,
    eventually,
    sharing::{condition, main_of, shell},
};

use crate::row::{Row, STAY, text};

crate::rows![
    resize_cpu_in_place,
    resize_memory_in_place,
    resize_memory_swap_follows,
    resize_restart_container,
    resize_several_containers_at_once,
    resize_infeasible,
    resize_of_a_memory_request_alone,
    resize_deferred_until_there_is_room,
    resize_moves_generation,
    resize_of_the_pod_cgroup,
];

fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn running(row: &Row<'_>, container: Value) -> Value {
    row.shell("p", STAY, container, json!({}));
    row.ready("p")
}

fn resize(row: &Row<'_>, pod: &str, containers: &[(&str, Value)]) {
    let all: Vec<Value> = containers.iter().map(|(name, r)| json!({"name": name, "resources": r})).collect();
    let patch = json!({"spec": {"containers": all}}).to_string();
    let _ = row.kubectl(&["patch", "pod", pod, "--subresource", "resize", "-p", &patch]);
}

/// A kube-apiserver judges by the node's allocatable itself, since 1.36, so that its nodes are never asked for more.
#[track_caller]
fn refused_at_once(row: &Row<'_>, wish: &Value, what: &str) {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": wish}]}}).to_string();
    let told = row.kubectl.output(&["patch", "pod", "p", "--subresource", "resize", "-p", &patch], "");
    let words = format!("node didn't have enough allocatable resources: {what}");
    assert!(!told.ok && told.err.contains(&words), "{}{}", told.out, told.err);
}

#[track_caller]
fn has(row: &Row<'_>, wanted: &Value) -> Value {
    row.wait("p", "has what it was given", |p| main_of(p)["resources"] == *wanted)
}

fn resize_cpu_in_place(row: &Row<'_>) {
    let before = running(row, json!({"resources": resources("50m", "16Mi")}));
    resize(row, "p", &[("main", resources("100m", "16Mi"))]);
    let after = has(row, &resources("100m", "16Mi"));
    assert_eq!(main_of(&before)["containerID"], main_of(&after)["containerID"]);
    let held = row.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&held["CpuQuota"], &held["CpuShares"]), (&json!(10_000), &json!(102)));
    row.says("p", "ResizeStarted");
    row.says("p", "ResizeCompleted");
}

fn resize_memory_in_place(row: &Row<'_>) {
    let before = running(row, json!({"resources": resources("50m", "16Mi")}));
    resize(row, "p", &[("main", resources("50m", "24Mi"))]);
    let after = has(row, &resources("50m", "24Mi"));
    assert_eq!(main_of(&before)["containerID"], main_of(&after)["containerID"]);
    assert_eq!(main_of(&after)["allocatedResources"]["memory"], "24Mi");
    // As the container itself sees it, in either version of cgroups.
    let id = row.ids("p", "main")[0].clone();
    let line = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max";
    assert_eq!(row.world.docker(&["exec", &id, "sh", "-c", line]).trim(), "25165824");
}

fn resize_memory_swap_follows(row: &Row<'_>) {
    running(row, json!({"resources": resources("50m", "16Mi")}));
    resize(row, "p", &[("main", resources("50m", "32Mi"))]);
    has(row, &resources("50m", "32Mi"));
    let held = row.inspect("p", "main")["HostConfig"].clone();
    assert_eq!((&held["Memory"], &held["MemorySwap"]), (&json!(32 << 20), &json!(32 << 20)));
}

fn resize_restart_container(row: &Row<'_>) {
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let before = running(row, json!({"resources": resources("50m", "16Mi"), "resizePolicy": policy}));
    resize(row, "p", &[("main", resources("50m", "24Mi"))]);
    let after = row.wait("p", "runs again with more", |p| {
        main_of(p)["restartCount"] == 1 && main_of(p)["resources"]["limits"]["memory"] == "24Mi"
    });
    assert_ne!(main_of(&before)["containerID"], main_of(&after)["containerID"]);
}

fn resize_several_containers_at_once(row: &Row<'_>) {
    let one = |name: &str| json!({"name": name, "command": shell(STAY), "resources": resources("50m", "16Mi")});
    row.pod("p", json!({"containers": [one("a"), one("b"), one("c")]}));
    row.ready("p");
    resize(
        row,
        "p",
        &[("a", resources("60m", "24Mi")), ("b", resources("70m", "16Mi")), ("c", resources("50m", "32Mi"))],
    );
    row.wait("p", "all have what they were given", |p| {
        let is = |at: usize, wanted: Value| p["status"]["containerStatuses"][at]["resources"] == wanted;
        is(0, resources("60m", "24Mi")) && is(1, resources("70m", "16Mi")) && is(2, resources("50m", "32Mi"))
    });
}

fn resize_infeasible(row: &Row<'_>) {
    running(row, json!({"resources": resources("50m", "16Mi")}));
    if row.world.api() == Api::Cluster {
        return refused_at_once(row, &resources("4000", "16Mi"), "cpu");
    }
    resize(row, "p", &[("main", resources("4000", "16Mi"))]);
    let pod = row.wait("p", "is told", |p| condition(p, "PodResizePending")["reason"] == "Infeasible");
    assert_eq!(main_of(&pod)["resources"]["limits"]["cpu"], "50m");
    row.says("p", "ResizeInfeasible");
}

fn resize_deferred_until_there_is_room(row: &Row<'_>) {
    // Two pods that fit one after the other, and not beside each other.
    let node = row.kubectl.json(&["node", "node"]).expect("there is a node");
    let cores: u64 = text(&node["status"]["allocatable"]["cpu"]).parse().expect("whole cores");
    let half = json!({"requests": {"cpu": format!("{}m", cores * 500)}});
    let most = json!({"requests": {"cpu": format!("{}m", cores * 600)}});
    row.shell("first", STAY, json!({"resources": half}), json!({}));
    row.ready("first");
    running(row, json!({"resources": {"requests": {"cpu": "10m"}}}));
    resize(row, "p", &[("main", most)]);
    row.wait("p", "is put off", |p| condition(p, "PodResizePending")["reason"] == "Deferred");
    row.says("p", "ResizeDeferred");
    let _ = row.kubectl(&["delete", "pod", "first"]);
    row.wait("p", "has what it was given", |p| {
        main_of(p)["resources"]["requests"]["cpu"] == format!("{}m", cores * 600)
            && condition(p, "PodResizePending").is_null()
    });
}

fn resize_moves_generation(row: &Row<'_>) {
    running(row, json!({"resources": resources("50m", "16Mi")}));
    resize(row, "p", &[("main", resources("60m", "16Mi"))]);
    row.wait("p", "is seen in its second form", |p| {
        p["metadata"]["generation"] == 2 && p["status"]["observedGeneration"] == 2
    });
}

fn resize_of_the_pod_cgroup(row: &Row<'_>) {
    let pod = running(row, json!({"resources": resources("50m", "16Mi")}));
    let uid = text(&pod["metadata"]["uid"]).to_owned();
    resize(row, "p", &[("main", resources("100m", "24Mi"))]);
    eventually(PATIENCE, "the pod is held to the new sum", || {
        let held = (row.pod_cgroup(&uid, "", "cpu quota"), row.pod_cgroup(&uid, "", "memory limit"));
        anyhow::ensure!(held == ("10000".to_owned(), (24 << 20).to_string()), "{held:?}");
        Ok(())
    });
}

/// Docker knows no requests of memory: the node judges and grants them all the same.
fn resize_of_a_memory_request_alone(row: &Row<'_>) {
    let asks = |memory: &str| json!({"requests": {"memory": memory}, "limits": {"memory": "4Ti"}});
    let before = running(row, json!({"resources": asks("16Mi")}));
    if row.world.api() == Api::Cluster {
        refused_at_once(row, &asks("3Ti"), "memory");
    } else {
        resize(row, "p", &[("main", asks("3Ti"))]);
        let put_off = row.wait("p", "has too large a wish", |p| condition(p, "PodResizePending")["status"] == "True");
        assert_eq!(main_of(&put_off)["allocatedResources"]["memory"], "16Mi");
        assert_eq!(main_of(&put_off)["resources"]["requests"]["memory"], "16Mi");
        row.says("p", "ResizeInfeasible");
    }
    resize(row, "p", &[("main", asks("32Mi"))]);
    let after = row.wait("p", "has what it asks for", |p| main_of(p)["allocatedResources"]["memory"] == "32Mi");
    assert_eq!(main_of(&before)["containerID"], main_of(&after)["containerID"]);
    row.says("p", "ResizeCompleted");
}
