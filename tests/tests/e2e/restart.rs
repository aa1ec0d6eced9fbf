//! Containers that end, under each restart policy.

use std::time::Duration;

use serde_json::Value;
use windlass_tests::{Kubectl, PATIENCE, World, eventually};

use crate::{container_id, shell_pod};

fn pod(kubectl: &Kubectl<'_>, name: &str) -> anyhow::Result<Value> {
    kubectl.json(&["pod", name])
}

fn wait_for(kubectl: &Kubectl<'_>, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    eventually(PATIENCE, &format!("{name}: {what}"), || {
        let pod = pod(kubectl, name)?;
        anyhow::ensure!(check(&pod), "{}", pod["status"]);
        Ok(pod)
    })
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or("")
}

#[test]
fn the_restart_policy_decides_what_an_exit_means() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    for (name, policy, line) in [
        ("always-ok", "Always", "sleep 1"),
        ("always-bad", "Always", "sleep 1; exit 3"),
        ("onfailure-ok", "OnFailure", "sleep 1"),
        ("onfailure-bad", "OnFailure", "sleep 1; exit 3"),
        ("never-ok", "Never", "sleep 1"),
        ("never-bad", "Never", "sleep 1; exit 3"),
    ] {
        kubectl.apply(&shell_pod(name, policy, line));
    }
    for name in ["always-ok", "always-bad", "onfailure-bad"] {
        let pod = wait_for(&kubectl, name, "is restarted", |p| restarts(p) >= 1);
        assert_eq!(phase(&pod), "Running", "{name}");
    }
    for name in ["onfailure-ok", "never-ok"] {
        let pod = wait_for(&kubectl, name, "succeeds", |p| phase(p) == "Succeeded");
        assert_eq!(restarts(&pod), 0, "{name}");
        assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    }
    let failed = wait_for(&kubectl, "never-bad", "fails", |p| phase(p) == "Failed");
    assert_eq!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert_eq!(restarts(&failed), 0);

    // A container that ends again and again is held back, and says so.
    let held = wait_for(&kubectl, "always-bad", "is held back", |p| {
        p["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let message = held["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap_or("");
    assert!(message.starts_with("back-off 10s restarting failed container=main pod=always-bad_default("), "{message}");
    let listed = kubectl.run(&["get", "pods"]);
    assert!(
        listed.contains("CrashLoopBackOff") && listed.contains("Completed") && listed.contains("Error"),
        "{listed}"
    );
    eventually(PATIENCE, "the events tell it", || {
        let events = kubectl.try_run(&["get", "events", "--field-selector", "involvedObject.name=always-bad"])?;
        anyhow::ensure!(
            events.contains("Back-off restarting failed container main in pod always-bad_default("),
            "{events}"
        );
        Ok(())
    });
    wait_for(&kubectl, "always-bad", "is started again after 10 s", |p| restarts(p) >= 2);
}

#[test]
fn a_container_that_is_killed_comes_back_at_once() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("victim", "Always", "exec sleep 100000"));
    let before = wait_for(&kubectl, "victim", "runs", |p| p["status"]["containerStatuses"][0]["ready"] == true);
    world.docker(&["kill", &container_id(&before)]);
    let after = wait_for(&kubectl, "victim", "runs again", |p| {
        restarts(p) == 1 && p["status"]["containerStatuses"][0]["ready"] == true
    });
    assert_ne!(container_id(&before), container_id(&after));
    assert_eq!(before["status"]["podIP"], after["status"]["podIP"], "the pod keeps its address");
    assert_eq!(after["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 137);
    let listed = kubectl.run(&["get", "pod", "victim"]);
    assert!(listed.contains("1 (") && listed.contains(" ago)"), "{listed}");
    assert!(kubectl.run(&["logs", "victim", "--previous"]).is_empty());
}

#[test]
fn memory_that_runs_out_is_named() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let manifest = shell_pod("hog", "Never", "tail /dev/zero")
        .replace("    command:", "    resources: {limits: {memory: 16Mi}}\n    command:");
    kubectl.apply(&manifest);
    let pod = wait_for(&kubectl, "hog", "is killed", |p| phase(p) == "Failed");
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"], "OOMKilled",
        "{}",
        pod["status"]
    );
}

#[test]
fn deletion_gives_a_container_its_time() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let line = "trap 'sleep 1; echo ended > /out/said; exit 0' TERM; while :; do sleep 0.1; done";
    let manifest = shell_pod("polite", "Always", line)
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20")
        + &format!(
            "    volumeMounts: [{{name: out, mountPath: /out}}]\n  volumes:\n  - name: out\n    hostPath: {{path: {}}}\n",
            world.dir().join("out").display()
        );
    kubectl.apply(&manifest);
    wait_for(&kubectl, "polite", "runs", |p| p["status"]["containerStatuses"][0]["ready"] == true);
    std::thread::sleep(Duration::from_millis(500));
    let _ = kubectl.run(&["delete", "pod", "polite", "--timeout=60s"]);
    assert_eq!(std::fs::read_to_string(world.dir().join("out/said")).unwrap(), "ended\n");
    assert_eq!(world.docker(&["ps", "-aq"]), "", "nothing is left");
}
