//! Probes, hooks and sidecars in one pod each, also across a restart of windlass.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, LentNode, Testbed, eventually};

use crate::{
    container_id,
    shared_dir::{SharedDir, container_status, events, is_ready, shell, wait_for, wait_for_event},
};

#[test]
fn probes() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let quick = |probe: Value| {
        let mut probe = probe;
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(1);
        // On a busy machine a program takes longer than the second that is the default.
        probe["timeoutSeconds"] = json!(30);
        probe
    };
    let serve = "mkdir -p /www && echo hi > /www/index.html && httpd -p 8080 -h /www && exec sleep 1000";
    let exec = |file: &str| quick(json!({"exec": {"command": ["test", "-f", format!("/shared/{file}")]}}));

    // Readiness by exec: becomes ready and unready again.
    let spec =
        json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"), "readinessProbe": exec("ready")}]});
    kubectl.apply(&shared.pod("exec", spec));
    let pod = wait_for(&kubectl, "exec", "runs", |p| container_status(p)["state"]["running"].is_object());
    assert!(!is_ready(&pod) && container_status(&pod)["started"] == true, "{}", pod["status"]);
    wait_for_event(&kubectl, "exec", "Unhealthy Readiness probe failed");
    shared.touch("ready");
    wait_for(&kubectl, "exec", "is ready", is_ready);
    shared.remove("ready");
    wait_for(&kubectl, "exec", "is no longer ready", |p| !is_ready(p));
    shared.touch("ready");
    let before = wait_for(&kubectl, "exec", "is ready again", is_ready);

    // By port: HTTP at a named port, TCP, and a closed port.
    for (name, probe, ready) in [
        ("http", json!({"httpGet": {"path": "/index.html", "port": "web"}}), true),
        ("http-404", json!({"httpGet": {"path": "/none", "port": 8080}}), false),
        ("tcp", json!({"tcpSocket": {"port": 8080}}), true),
        ("tcp-none", json!({"tcpSocket": {"port": 8081}}), false),
        ("grpc-none", json!({"grpc": {"port": 8080}}), false),
    ] {
        let spec = json!({"containers": [{"name": "main", "command": shell(serve), "readinessProbe": quick(probe),
                                          "ports": [{"name": "web", "containerPort": 8080}]}]});
        kubectl.apply(&shared.pod(name, spec));
        if ready {
            wait_for(&kubectl, name, "is ready", is_ready);
        } else {
            wait_for_event(&kubectl, name, "Readiness probe failed");
            assert!(!is_ready(&kubectl.json(&["pod", name]).unwrap()), "{name}");
        }
    }
    assert!(events(&kubectl, "http-404").contains("HTTP probe failed with statuscode: 404"));

    // Liveness starts after the startup probe succeeds, and then restarts the failing container.
    let mut startup = exec("begun");
    startup["failureThreshold"] = json!(100);
    let spec = json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
                                      "startupProbe": startup, "livenessProbe": exec("alive")}]});
    kubectl.apply(&shared.pod("live", spec));
    wait_for_event(&kubectl, "live", "Startup probe failed");
    let pod = kubectl.json(&["pod", "live"]).unwrap();
    assert!(
        container_status(&pod)["started"] == false && container_status(&pod)["restartCount"] == 0,
        "{}",
        pod["status"]
    );
    shared.touch("alive");
    shared.touch("begun");
    wait_for(&kubectl, "live", "has started", |p| container_status(p)["started"] == true && is_ready(p));
    shared.remove("alive");
    let pod = wait_for(&kubectl, "live", "is restarted", |p| container_status(p)["restartCount"] == 1);
    assert_eq!(container_status(&pod)["lastState"]["terminated"]["exitCode"], 137, "{}", pod["status"]);
    wait_for_event(&kubectl, "live", "Container main failed liveness probe, will be restarted");

    // Results survive a restart of windlass: no pod becomes unready.
    let since = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().unwrap();
        all.iter().find(|c| c["type"] == "Ready").unwrap()["lastTransitionTime"].clone()
    };
    windlass.kill();
    std::thread::sleep(Duration::from_millis(1500));
    windlass.start();
    eventually(DEFAULT_TIMEOUT, "the API is back", || windlass.kubectl().json(&["pod", "exec"]));
    // The counters are of the new process, which so has probed several times itself.
    eventually(DEFAULT_TIMEOUT, "the new process has probed the pod", || {
        let page = testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/metrics/probes")?;
        let of_pod = |line: &&str| {
            ["prober_probe_total{", "pod=\"exec\"", "result=\"successful\""].iter().all(|part| line.contains(part))
        };
        let count = page.lines().find(of_pod).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        anyhow::ensure!(count >= Some(3.0), "{count:?} probes: {page}");
        Ok(())
    });
    let after = windlass.kubectl().json(&["pod", "exec"]).unwrap();
    assert_eq!((since(&before), container_id(&before)), (since(&after), container_id(&after)));
}

#[test]
fn hooks_and_termination_order() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let note =
        |word: &str, file: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {word} >> /shared/{file}")]}});
    let until_told = |word: &str, file: &str| {
        shell(&format!("trap 'echo {word} >> /shared/{file}; exit 0' TERM; while :; do sleep 0.1; done"))
    };

    // postStart after the start, preStop before the signal.
    let spec = json!({"terminationGracePeriodSeconds": 20, "containers": [
        {"name": "main", "command": until_told("signal", "hooks"),
         "lifecycle": {"postStart": note("started", "hooks"), "preStop": note("stopping", "hooks")}},
        {"name": "second", "command": shell("head -n 1 /shared/hooks > /shared/second; exec sleep 1000")}]});
    kubectl.apply(&shared.pod("hooks", spec));
    wait_for(&kubectl, "hooks", "is ready", is_ready);
    assert_eq!(shared.lines("hooks"), ["started"]);
    // The next container waits for the hook.
    eventually(DEFAULT_TIMEOUT, "the second container has looked", || {
        anyhow::ensure!(shared.lines("second") == ["started"], "{:?}", shared.lines("second"));
        Ok(())
    });
    let _ = kubectl.run(&["delete", "pod", "hooks"]);
    assert_eq!(shared.lines("hooks"), ["started", "stopping", "signal"]);

    // A failing hook ends its container.
    let spec = json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
        "lifecycle": {"postStart": {"exec": {"command": ["false"]}}}}]});
    kubectl.apply(&shared.pod("bad-hook", spec));
    wait_for(&kubectl, "bad-hook", "is restarted", |p| container_status(p)["restartCount"].as_u64() >= Some(1));
    wait_for_event(&kubectl, "bad-hook", "FailedPostStartHook");

    // Sidecars start before and end after the others, in reverse order.
    let sidecar = |name: &str| {
        json!({"name": name, "restartPolicy": "Always", "command": until_told(name, "ends"),
               "startupProbe": {"exec": {"command": ["sh", "-c", format!("echo {name} >> /shared/begins")]}, "periodSeconds": 1}})
    };
    let spec = json!({"terminationGracePeriodSeconds": 20,
        "initContainers": [sidecar("one"), sidecar("two"), {"name": "init", "command": shell("echo init >> /shared/begins")}],
        "containers": [{"name": "main", "command": until_told("main", "ends")}]});
    kubectl.apply(&shared.pod("sidecars", spec));
    wait_for(&kubectl, "sidecars", "is ready", is_ready);
    assert_eq!(shared.lines("begins"), ["one", "two", "init"]);
    let _ = kubectl.run(&["delete", "pod", "sidecars"]);
    assert_eq!(shared.lines("ends"), ["main", "two", "one"]);

    // When the pod's containers have completed, its sidecars are ended.
    let spec = json!({"restartPolicy": "Never", "initContainers": [
        {"name": "side", "restartPolicy": "Always", "command": until_told("side", "job")}],
        "containers": [{"name": "main", "command": shell("sleep 1")}]});
    kubectl.apply(&shared.pod("job", spec));
    wait_for(&kubectl, "job", "succeeds", |p| p["status"]["phase"] == "Succeeded");
    assert_eq!(shared.lines("job"), ["side"]);

    // A later request with a shorter grace period is honoured while a container is being stopped.
    let spec = json!({"terminationGracePeriodSeconds": 300,
        "containers": [{"name": "main", "command": shell("trap '' TERM; while :; do sleep 0.1; done")}]});
    kubectl.apply(&shared.pod("slow", spec));
    let pod = wait_for(&kubectl, "slow", "is ready", is_ready);
    let _ = kubectl.run(&["delete", "pod", "slow", "--wait=false"]);
    wait_for(&kubectl, "slow", "is being deleted", |p| p["metadata"]["deletionTimestamp"].is_string());
    std::thread::sleep(Duration::from_secs(2));
    let _ = kubectl.run(&["delete", "pod", "slow", "--grace-period=1"]);
    let id = container_id(&pod);
    eventually(DEFAULT_TIMEOUT, "its container is gone", || {
        anyhow::ensure!(!testbed.docker(&["ps", "-aq", "--no-trunc"]).contains(&id));
        Ok(())
    });
}
