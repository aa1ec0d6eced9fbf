//! Failures of the host: Docker hangs, disks fill up, images are corrupt, the clock jumps, pods use too much.
//! Unaffected work continues, nothing healthy is reported dead, and the node recovers.

use std::{fs, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually, resident_megabytes};

use crate::{
    WEB, container_id,
    shared_dir::{SharedDir, condition, container_status, is_ready, shell, wait_for},
    shell_pod,
};

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: &str) -> Self {
        let pid = Pid::from_raw(pid.trim().parse().expect("a process id"));
        kill(pid, Signal::SIGSTOP).expect("the process can be signalled");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn node_ready(kubectl: &windlass_tests::Kubectl<'_>) -> Value {
    kubectl.json(&["node", "node"]).map(|node| condition(&node, "Ready")).unwrap_or_default()
}

#[test]
fn docker_hangs_for_a_minute() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    let before = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    let ids = |pods: &[Value]| pods.iter().map(container_id).collect::<Vec<_>>();
    // Pods are ready a moment before their rules are written.
    let ask = "curl -fsS --max-time 5 http://127.0.0.1:30080/";
    eventually(DEFAULT_TIMEOUT, "the service answers", || testbed.try_sh(ask));
    let stopped = Stopped::new(&testbed.docker_pid().to_string());
    let mut away_was_told = false;
    for round in 0..30 {
        // Traffic and the API work without Docker.
        testbed.sh(ask);
        let _ = kubectl.run(&["create", "configmap", &format!("c{round}"), "--from-literal=a=b"]);
        for pod in
            kubectl.json(&["pods", "-l", "app=web"]).expect("pods are listed")["items"].as_array().expect("a list")
        {
            assert_eq!(pod["status"]["phase"], "Running", "{}", pod["status"]);
            assert_eq!(container_status(pod)["restartCount"], 0);
            assert!(pod["metadata"]["deletionTimestamp"].is_null());
        }
        if round == 2 {
            kubectl.apply(&shell_pod("late", "Always", "sleep 3600"));
        }
        away_was_told |= node_ready(&kubectl)["status"] != "True";
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(away_was_told, "{}", node_ready(&kubectl));
    drop(stopped);
    wait_for(&kubectl, "late", "is ready", is_ready);
    eventually(DEFAULT_TIMEOUT, "the node is Ready", || {
        anyhow::ensure!(node_ready(&kubectl)["status"] == "True");
        Ok(())
    });
    let after = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    assert_eq!(ids(&after), ids(&before));
}

#[test]
fn a_container_that_cannot_be_killed_blocks_only_its_pod() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("stuck", "Always", "sleep 3600"));
    let pod = wait_for(&kubectl, "stuck", "is ready", is_ready);
    // The shim that carries out Docker's kill does not respond.
    let shim = testbed.sh(&format!("pgrep -f -- '[c]ontainerd-shim.* -id {}'", container_id(&pod)));
    let stopped = Stopped::new(&shim);
    let _ = kubectl.run(&["delete", "pod", "stuck", "--wait=false"]);
    for round in 0..2 {
        let name = format!("other-{round}");
        kubectl.apply(&shell_pod(&name, "Always", "trap exit TERM; while :; do sleep 0.1; done"));
        wait_for(&kubectl, &name, "is ready", is_ready);
        let _ = kubectl.run(&["delete", "pod", &name, "--timeout=30s"]);
    }
    assert!(!kubectl.json(&["pod", "stuck"]).expect("it is there")["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(node_ready(&kubectl)["status"], "True");
    drop(stopped);
    eventually(DEFAULT_TIMEOUT, "the stuck pod is gone", || {
        anyhow::ensure!(kubectl.output(&["get", "pod", "stuck"], "").err.contains("NotFound"));
        Ok(())
    });
}

/// A file system with delayed allocation, as machines have it, in a file: ENOSPC is reported at a sync, too. The
/// testbed unmounts it at its end, which frees the loop device.
fn small_disk(testbed: &Testbed, at: &Path) {
    let image = testbed.dir().join("disk.img");
    fs::create_dir_all(at).expect("a folder");
    let (image, at) = (image.display(), at.display());
    testbed.sh(&format!("truncate -s 96M {image} && mkfs.ext4 -q -F -m 0 {image} && mount -o loop {image} {at}"));
}

#[test]
fn a_full_disk_loses_nothing() {
    let testbed = Testbed::new();
    let data = testbed.dir().join("data");
    small_disk(&testbed, &data);
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("p", "Always", "sleep 3600"));
    let before = wait_for(&kubectl, "p", "is ready", is_ready);
    let filler = data.join("filler");
    testbed.sh(&format!("dd if=/dev/zero of={} bs=64k 2>/dev/null || true", filler.display()));
    let value = format!("--from-literal=a={}", "x".repeat(100_000));
    let (mut kept, mut refused) = (Vec::new(), String::new());
    for round in 0..200 {
        let name = format!("c{round}");
        let output = kubectl.output(&["create", "configmap", &name, &value], "");
        if output.ok {
            kept.push(name);
        } else {
            refused = output.err;
            break;
        }
    }
    assert!(refused.contains("space"), "it says why: {refused:?}");
    assert!(!kept.is_empty(), "nothing was kept that could be lost");
    // Reads succeed, and pods keep running.
    assert!(is_ready(&kubectl.json(&["pod", "p"]).expect("it is read")));
    fs::remove_file(&filler).expect("the disk is emptied");
    eventually(DEFAULT_TIMEOUT, "writes are taken again", || {
        kubectl.try_run(&["create", "configmap", "after", "--from-literal=a=b"])
    });
    // Again, and now windlass is killed while the disk is full.
    testbed.sh(&format!("dd if=/dev/zero of={} bs=64k 2>/dev/null || true", filler.display()));
    let _ = kubectl.output(&["create", "configmap", "more", &value], "");
    windlass.kill();
    fs::remove_file(&filler).expect("the disk is emptied");
    windlass.up();
    for name in kept.iter().map(String::as_str).chain(["after"]) {
        let _ = kubectl.run(&["get", "configmap", name]);
    }
    let after = wait_for(&kubectl, "p", "is ready", is_ready);
    assert_eq!(container_id(&after), container_id(&before));
    assert_eq!(container_status(&after)["restartCount"], 0);
}

#[test]
fn a_corrupt_image_fails_only_its_pod() {
    let testbed = Testbed::new();
    let layer = testbed.docker(&["image", "inspect", "-f", "{{.GraphDriver.Data.UpperDir}}", "windlass/nginx:1"]);
    fs::remove_dir_all(layer.trim()).expect("the layer is there");
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("rotten", "Always", "sleep 3600").replace("windlass/busybox:1", "windlass/nginx:1"));
    kubectl.apply(&shell_pod("sound", "Always", "sleep 3600"));
    wait_for(&kubectl, "sound", "is ready", is_ready);
    let pod = wait_for(&kubectl, "rotten", "says why", |pod| {
        let reason = container_status(pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default();
        reason.ends_with("Error") || reason == "CrashLoopBackOff"
    });
    let shown = format!("{} {}", container_status(&pod)["state"], container_status(&pod)["lastState"]);
    assert!(shown.contains("no such file or directory"), "{shown}");
    assert_eq!(node_ready(&kubectl)["status"], "True");
}

#[test]
fn a_fork_bomb_is_held_to_its_pods_pid_limit() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--pod-max-pids", "60"]);
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let bomb = "touch /shared/lit; bomb() { bomb | bomb & }; while :; do bomb; sleep 1; done 2>/dev/null";
    kubectl.apply(&shared.pod("bomb", json!({"containers": [{"name": "main", "command": shell(bomb)}]})));
    let pod = wait_for(&kubectl, "bomb", "has started", |pod| container_status(pod)["started"] == true);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let cgroup = testbed.sh(&format!(
        "find /sys/fs/cgroup -type d -path '*kubepods*{uid}' -exec test -e {{}}/pids.current \\; -print | head -1"
    ));
    let read = |file: &str| -> String {
        fs::read_to_string(format!("{}/{file}", cgroup.trim())).expect("the cgroup is there").trim().to_owned()
    };
    assert_eq!(read("pids.max"), "60");
    eventually(DEFAULT_TIMEOUT, "it has run into its limit", || {
        let all: u32 = read("pids.current").parse()?;
        anyhow::ensure!((55..=60).contains(&all), "{all} processes");
        Ok(())
    });
    // Other pods keep running, and it ends when it is deleted.
    kubectl.apply(&shared.pod("beside", json!({"containers": [{"name": "main", "command": shell("sleep 3600")}]})));
    wait_for(&kubectl, "beside", "is ready", is_ready);
    assert_eq!(kubectl.run(&["exec", "beside", "--", "echo", "alive"]), "alive\n");
    let _ = kubectl.run(&["delete", "pod", "bomb", "--timeout=60s"]);
}

#[test]
fn a_flood_of_logs_affects_no_other_pod() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--container-log-max-size", "4Mi", "--container-log-max-files", "2"]);
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let container = |line: &str| json!({"containers": [{"name": "main", "command": shell(line)}]});
    let pid = windlass.daemon().pid();
    kubectl.apply(&shared.pod("calm", container("echo calm; sleep 3600")));
    wait_for(&kubectl, "calm", "is ready", is_ready);
    let before = resident_megabytes(pid).expect("it runs");
    kubectl.apply(
        &shared.pod("flood", container("exec yes a line of a log that nobody can read as fast as it is written")),
    );
    wait_for(&kubectl, "flood", "is ready", is_ready);
    // A follower that is slower than the output, and others alongside it.
    let mut follower = kubectl.command();
    let follower =
        Daemon::start("kubectl logs -f", follower.args(["logs", "-f", "flood"]), &testbed.dir().join("follower.log"))
            .expect("kubectl");
    for _ in 0..10 {
        assert_eq!(kubectl.run(&["logs", "--tail=3", "flood"]).lines().count(), 3);
        assert_eq!(kubectl.run(&["logs", "calm"]), "calm\n");
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(follower);
    kubectl.apply(&shared.pod("late", container("sleep 3600")));
    wait_for(&kubectl, "late", "is ready", is_ready);
    let grown = resident_megabytes(pid).expect("it runs") - before;
    assert!(grown < 60.0, "{grown} MB more than before the flood");
    let kept: u64 = testbed
        .sh(&format!("du -sb {}/docker/containers | cut -f1", testbed.dir().display()))
        .trim()
        .parse()
        .expect("bytes");
    assert!(kept < 40 << 20, "{kept} bytes of logs");
}

/// Only the clock of windlass is changed, by a preloaded library.
#[test]
fn the_clock_jumps_a_day_ahead_and_back() {
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    let testbed = Testbed::new();
    let clock = testbed.dir().join("clock");
    let set = |offset: &str| fs::write(&clock, format!("{offset}\n")).expect("the clock's file");
    set("+0");
    let windlass = testbed.windlass();
    let mut command = windlass.command("up");
    command.env("LD_PRELOAD", LIBRARY).env("FAKETIME_TIMESTAMP_FILE", &clock);
    command
        .env("FAKETIME_CACHE_DURATION", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    let mut node =
        Daemon::start("windlass up", &mut command, &testbed.dir().join("windlass.log")).expect("windlass up");
    let kubectl = windlass.kubectl();
    let shared = SharedDir::new(&testbed);
    let probed = json!({"name": "main", "command": shell("sleep 3600"),
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}});
    eventually(DEFAULT_TIMEOUT, "a pod is taken", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        let output = kubectl.output(&["apply", "-f", "-"], &shared.pod("p", json!({"containers": [probed]})));
        anyhow::ensure!(output.ok, "{}", output.err);
        Ok(())
    });
    let before = wait_for(&kubectl, "p", "is ready", is_ready);
    for (offset, name) in [("+86400", "ahead"), ("-86400", "back"), ("+0", "again")] {
        set(offset);
        std::thread::sleep(Duration::from_secs(5));
        let moved = node.log().lines().last().unwrap_or_default().to_owned();
        kubectl.apply(&shared.pod(name, json!({"containers": [probed]})));
        wait_for(&kubectl, name, "is ready", is_ready);
        let pod = kubectl.json(&["pod", name]).expect("it is there");
        let created = pod["metadata"]["creationTimestamp"].as_str().expect("a time").to_owned();
        let today = testbed.sh("date -u +%Y-%m-%d");
        assert_eq!(created.starts_with(today.trim()), offset == "+0", "{created} {offset}: {moved}");
        // Pods keep running.
        let old = kubectl.json(&["pod", "p"]).expect("it is there");
        assert!(is_ready(&old), "{offset}: {}", old["status"]);
        assert_eq!(container_status(&old)["restartCount"], 0);
        assert_eq!(container_id(&old), container_id(&before));
        let _ = kubectl.run(&["delete", "pod", name, "--timeout=60s"]);
    }
    assert_eq!(node_ready(&kubectl)["status"], "True");
}
