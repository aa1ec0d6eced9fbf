//! Resources of pods: limits, resizing, bandwidth, DNS names; and ephemeral containers.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, LentNode, eventually};

use crate::shared_dir::{SharedDir, container_status, is_ready, shell, wait_for, wait_for_event};

/// A file of a pod's cgroup, in whichever version of cgroups the machine has.
pub(crate) fn cgroup_file(class: &str, uid: &str, v1: (&str, &str), v2: &str) -> PathBuf {
    let root = "/sys/fs/cgroup";
    let one = PathBuf::from(format!("{root}/{}/kubepods{class}/pod{uid}/{}", v1.0, v1.1));
    if one.exists() { one } else { format!("{root}/kubepods{class}/pod{uid}/{v2}").into() }
}

fn cgroup(class: &str, uid: &str, v1: (&str, &str), v2: &str) -> String {
    fs::read_to_string(cgroup_file(class, uid, v1, v2)).unwrap_or_default().trim().to_owned()
}

fn memory_of(uid: &str) -> String {
    cgroup("/burstable", uid, ("memory", "memory.limit_in_bytes"), "memory.max")
}

fn quota_of(uid: &str) -> String {
    let text = cgroup("/burstable", uid, ("cpu", "cpu.cfs_quota_us"), "cpu.max");
    text.split(' ').next().unwrap_or("").to_owned()
}

#[test]
fn in_place_resize() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let spec = json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "32Mi"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}]});
    kubectl.apply(&shared.pod("p", spec));
    let pod = wait_for(&kubectl, "p", "is ready", is_ready);
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let id = container_status(&pod)["containerID"].clone();
    assert_eq!((quota_of(&uid).as_str(), memory_of(&uid).as_str()), ("20000", "33554432"));

    let resize = |resources: Value| {
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
        let _ = kubectl.run(&["patch", "pod", "p", "--subresource", "resize", "-p", &patch.to_string()]);
    };
    // CPU changes while the container runs.
    resize(json!({"requests": {"cpu": "150m"}, "limits": {"cpu": "300m"}}));
    let pod = wait_for(&kubectl, "p", "has more CPU", |p| container_status(p)["resources"]["limits"]["cpu"] == "300m");
    assert_eq!(container_status(&pod)["containerID"], id);
    assert_eq!(container_status(&pod)["allocatedResources"]["cpu"], "150m");
    eventually(DEFAULT_TIMEOUT, "the pod's cgroup follows", || {
        anyhow::ensure!(quota_of(&uid) == "30000", "{}", quota_of(&uid));
        Ok(())
    });
    wait_for_event(&kubectl, "p", "ResizeCompleted");

    // Memory, by a restart, as its resize policy says.
    resize(json!({"limits": {"memory": "48Mi"}}));
    let pod = wait_for(&kubectl, "p", "has more memory", |p| {
        container_status(p)["restartCount"] == 1 && container_status(p)["resources"]["limits"]["memory"] == "48Mi"
    });
    assert_ne!(container_status(&pod)["containerID"], id);
    assert_eq!(memory_of(&uid), "50331648");

    // More than the node can ever give is refused.
    let refused = kubectl.try_run(&[
        "patch",
        "pod",
        "p",
        "--subresource",
        "resize",
        "-p",
        r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"4000"},"limits":{"cpu":"4000"}}}]}}"#,
    ]);
    assert!(refused.unwrap_err().to_string().contains("node didn't have enough allocatable resources: cpu"));

    let refused = kubectl.try_run(&[
        "patch",
        "pod",
        "p",
        "--subresource",
        "resize",
        "-p",
        r#"{"spec":{"containers":[{"name":"main","resources":{"requests":null,"limits":null}}]}}"#,
    ]);
    assert!(refused.unwrap_err().to_string().contains("QOS Class may not change"));
}

#[test]
fn a_resize_is_deferred_until_resources_are_free() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let node = kubectl.json(&["node", "node"]).unwrap();
    let cores: i64 = node["status"]["allocatable"]["cpu"].as_str().unwrap().parse().unwrap();
    let pod = |name: &str, cpu: &str| {
        shared.pod(
            name,
            json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
            "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}}]}),
        )
    };
    kubectl.apply(&pod("p", "100m"));
    kubectl.apply(&pod("large", &format!("{}m", cores * 1000 - 500)));
    wait_for(&kubectl, "large", "is ready", is_ready);
    let before = wait_for(&kubectl, "p", "is ready", is_ready);
    let wish = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "700m"}}}]}});
    let _ = kubectl.run(&["patch", "pod", "p", "--subresource", "resize", "-p", &wish.to_string()]);
    wait_for_event(&kubectl, "p", "ResizeDeferred");
    // A container that is restarted meanwhile has its previous resources.
    let id = container_status(&before)["containerID"].as_str().unwrap().trim_start_matches("docker://").to_owned();
    let _ = testbed.docker(&["kill", &id]);
    let again = wait_for(&kubectl, "p", "runs again", |p| container_status(p)["restartCount"] == 1 && is_ready(p));
    assert_eq!(container_status(&again)["allocatedResources"]["cpu"], "100m", "{again}");
    let shares = |pod: &Value| {
        let id = container_status(pod)["containerID"].as_str().unwrap().trim_start_matches("docker://").to_owned();
        testbed.docker(&["inspect", "-f", "{{.HostConfig.CpuShares}}", &id]).trim().to_owned()
    };
    assert_eq!(shares(&again), "102");
    // Another pod's end frees the resources.
    let _ = kubectl.run(&["delete", "pod", "large"]);
    let larger = wait_for(&kubectl, "p", "has more", |p| {
        container_status(p)["allocatedResources"]["cpu"] == "700m"
            && container_status(p)["resources"]["requests"]["cpu"] == "700m"
    });
    assert_eq!((shares(&larger).as_str(), &container_status(&larger)["restartCount"]), ("716", &json!(1)));
    wait_for_event(&kubectl, "p", "ResizeCompleted");
}

#[test]
fn container_restart_rules() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let again = "echo again >> /shared/log; n=$(grep -c again /shared/log); \
                 [ $n -lt 2 ] && exit 42; [ $n -lt 3 ] && exit 43; exit 0";
    let other = "echo other >> /shared/log; while [ $(grep -c again /shared/log) -lt 3 ]; do sleep 0.1; done";
    let rule = |action: &str, code: i32| json!({"action": action, "exitCodes": {"operator": "In", "values": [code]}});
    let spec = json!({"restartPolicy": "Never",
        "initContainers": [{"name": "init", "command": shell("echo init >> /shared/log")}],
        "containers": [
            {"name": "again", "command": shell(again), "restartPolicy": "Never",
             "restartPolicyRules": [rule("Restart", 42), rule("RestartAllContainers", 43)]},
            {"name": "other", "command": shell(other)}]});
    kubectl.apply(&shared.pod("p", spec));
    let pod = wait_for(&kubectl, "p", "ends well", |p| p["status"]["phase"] == "Succeeded");
    let count = |word: &str| shared.lines("log").iter().filter(|l| *l == word).count();
    // One start of each, a restart of one, and all of it once more.
    assert_eq!((count("init"), count("again"), count("other")), (2, 3, 2), "{:?}", shared.lines("log"));
    assert_eq!(container_status(&pod)["restartCount"], 2);
}

#[test]
fn ephemeral_containers() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    kubectl.apply(&shared.pod("p", json!({"containers": [{"name": "main", "command": shell("exec sleep 4321")}]})));
    wait_for(&kubectl, "p", "is ready", is_ready);
    let _ = kubectl.run(&[
        "debug",
        "p",
        "--image=windlass/busybox:1",
        "--target=main",
        "-c",
        "look",
        "--",
        "sh",
        "-c",
        "ps; exit 3",
    ]);
    let look = |p: &Value| p["status"]["ephemeralContainerStatuses"][0].clone();
    let pod =
        wait_for(&kubectl, "p", "shows how the visitor ended", |p| look(p)["state"]["terminated"]["exitCode"] == 3);
    assert_eq!((&look(&pod)["name"], &look(&pod)["restartCount"]), (&json!("look"), &json!(0)));
    assert!(is_ready(&pod), "a visitor's end is nothing to the pod");
    let log = kubectl.run(&["logs", "p", "-c", "look"]);
    assert!(log.contains("sleep 4321"), "it sees the processes of its target: {log}");
    let refused = kubectl.try_run(&[
        "patch",
        "pod",
        "p",
        "--subresource",
        "ephemeralcontainers",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/spec/ephemeralContainers/0"}]"#,
    ]);
    assert!(refused.unwrap_err().to_string().contains("may not be removed"));
}

#[test]
fn host_names_and_bandwidth_limits() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let output = shell("hostname > /shared/name; cat /etc/hosts > /shared/hosts; exec sleep 1000");
    let mut pod: Value = serde_json::from_str(&shared.pod(
        "p",
        json!({
        "hostname": "here", "subdomain": "web", "setHostnameAsFQDN": true,
        "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["a", "b"]}],
        "containers": [{"name": "main", "command": output}]}),
    ))
    .unwrap();
    pod["metadata"]["annotations"] =
        json!({"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "5M"});
    kubectl.apply(&pod.to_string());
    let pod = wait_for(&kubectl, "p", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the pod has told its name", || {
        anyhow::ensure!(shared.lines("name") == ["here.web.default.svc.cluster.local"], "{:?}", shared.lines("name"));
        Ok(())
    });
    let ip = pod["status"]["podIP"].as_str().unwrap();
    let hosts = shared.lines("hosts");
    for line in [format!("{ip}\there.web.default.svc.cluster.local\there"), "192.0.2.9\ta\tb".to_owned()] {
        assert!(hosts.contains(&line), "{line}: {hosts:?}");
    }
    // Both on the host: what is in its own namespace a pod may be allowed to change.
    let shaped = testbed.sh("tc qdisc show");
    assert!(shaped.contains("rate 10Mbit") && shaped.contains("rate 5Mbit"), "{shaped}");
}
