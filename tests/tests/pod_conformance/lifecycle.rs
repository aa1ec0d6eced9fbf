//! Phases, restart policies, and the sync of a pod.

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{condition, container_status, shell},
};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    phase_failed_by_an_init_container,
    phase_pending_while_init_containers_run,
    phase_pending_while_a_container_never_started,
    phase_running_with_one_of_two,
    phase_running_while_one_may_restart,
    phase_succeeded_when_all_exit_zero,
    phase_failed_when_one_exits_non_zero,
    phase_ignores_a_stopped_sidecar,
    phase_terminal_only_after_the_last_end,
    restart_always_exit_zero,
    restart_always_exit_non_zero,
    restart_again_after_the_back_off,
    restart_on_failure_exit_zero,
    restart_on_failure_exit_non_zero,
    restart_never_exit_zero,
    restart_never_exit_non_zero,
    two_containers_always_first_fails,
    two_containers_on_failure_first_fails_second_ends,
    two_containers_never_first_fails,
    two_containers_never_second_exits,
    oom_killed_always,
    oom_killed_on_failure,
    oom_killed_never,
    no_restart_while_being_deleted,
    sandbox_replaced_when_it_ends,
    no_sandbox_once_all_have_ended,
    init_containers_run_one_after_another,
    init_container_failed_is_run_again,
    sidecar_starts_before_the_next,
    crashing_sidecar_does_not_block_others,
    init_containers_that_are_removed_are_not_run_again,
    containers_of_an_unknown_pod_are_killed,
    sidecars_end_after_the_main_containers,
    containers_start_in_spec_order,
    ephemeral_container_is_run_once,
    container_hash_changed_by_an_image,
    active_deadline_seconds_may_change,
];

fn policy(case: &Case<'_>, name: &str, policy: &str, line: &str) {
    case.shell(name, line, json!({}), json!({"restartPolicy": policy}));
}

fn restarts(pod: &Value, at: usize) -> u64 {
    pod["status"]["containerStatuses"][at]["restartCount"].as_u64().unwrap_or(0)
}

/// A container that exceeds its memory limit.
fn hungry(case: &Case<'_>, name: &str, policy: &str) {
    let resources = json!({"resources": {"limits": {"memory": "16Mi"}}});
    let line = "tail /dev/zero";
    case.shell(name, line, resources, json!({"restartPolicy": policy}));
}

fn phase_failed_by_an_init_container(case: &Case<'_>) {
    let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "init", "command": shell("exit 3")}],
        "containers": [{"name": "main", "command": shell("touch /shared/ran")}]});
    case.pod("p", spec);
    let pod = case.wait_phase("p", "Failed");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert!(!case.shared.0.join("ran").exists());
}

fn phase_pending_while_init_containers_run(case: &Case<'_>) {
    let init = "while [ ! -e /shared/go ]; do sleep 0.1; done";
    case.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell(init)}],
            "containers": [{"name": "main", "command": shell(SLEEP_FOREVER)}]}),
    );
    let pod = case.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(container_status(&pod)["state"]["waiting"]["reason"], "PodInitializing");
    case.shared.touch("go");
    case.wait_phase("p", "Running");
}

fn phase_pending_while_a_container_never_started(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"containers": [{"name": "a", "command": shell(SLEEP_FOREVER)},
            {"name": "b", "image": "windlass/none:1", "imagePullPolicy": "Never"}]}),
    );
    let pod = case.wait("p", "has one running", |p| {
        let all = &p["status"]["containerStatuses"];
        all[0]["state"]["running"].is_object() && all[1]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert_eq!(pod["status"]["phase"], "Pending");
}

fn phase_running_with_one_of_two(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"restartPolicy": "Never", "containers": [{"name": "a", "command": shell("exit 0")},
            {"name": "b", "command": shell(SLEEP_FOREVER)}]}),
    );
    let pod = case.wait("p", "has one left", |p| {
        let all = &p["status"]["containerStatuses"];
        all[0]["state"]["terminated"].is_object() && all[1]["state"]["running"].is_object()
    });
    assert_eq!(pod["status"]["phase"], "Running");
}

fn phase_running_while_one_may_restart(case: &Case<'_>) {
    policy(case, "p", "Always", "exit 1");
    case.wait_waiting("p", "CrashLoopBackOff");
    assert_eq!(case.kubectl(&["get", "pod", "p", "-o", "jsonpath={.status.phase}"]), "Running");
}

fn phase_succeeded_when_all_exit_zero(case: &Case<'_>) {
    let both = json!([{"name": "a", "command": shell("exit 0")}, {"name": "b", "command": shell("exit 0")}]);
    case.pod("p", json!({"restartPolicy": "OnFailure", "containers": both}));
    case.wait_phase("p", "Succeeded");
}

fn phase_failed_when_one_exits_non_zero(case: &Case<'_>) {
    let both = json!([{"name": "a", "command": shell("exit 0")}, {"name": "b", "command": shell("exit 1")}]);
    case.pod("p", json!({"restartPolicy": "Never", "containers": both}));
    case.wait_phase("p", "Failed");
}

fn phase_ignores_a_stopped_sidecar(case: &Case<'_>) {
    let side = "trap 'exit 9' TERM; while :; do sleep 0.1; done";
    case.pod(
        "p",
        json!({"restartPolicy": "Never",
            "initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell(side)}],
            "containers": [{"name": "main", "command": shell("sleep 1")}]}),
    );
    let pod = case.wait_phase("p", "Succeeded");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 9);
}

fn phase_terminal_only_after_the_last_end(case: &Case<'_>) {
    let slow = "trap 'sleep 2; exit 0' TERM; while :; do sleep 0.1; done";
    case.shell("p", slow, json!({}), json!({"terminationGracePeriodSeconds": 20}));
    case.wait_ready("p");
    let _ = case.kubectl(&["patch", "pod", "p", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    // Once the status says that it failed, nothing of it runs.
    let pod = case.wait("p", "fails", |p| {
        let running = container_status(p)["state"]["running"].is_object();
        let failed = p["status"]["phase"] == "Failed";
        assert!(!(failed && running), "{}", p["status"]);
        failed
    });
    assert_eq!(container_status(&pod)["state"]["terminated"]["exitCode"], 0);
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
}

fn restart_always_exit_zero(case: &Case<'_>) {
    policy(case, "p", "Always", "exit 0");
    let pod = case.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(
        (&pod["status"]["phase"], &container_status(&pod)["lastState"]["terminated"]["exitCode"]),
        (&json!("Running"), &json!(0))
    );
}

fn restart_always_exit_non_zero(case: &Case<'_>) {
    policy(case, "p", "Always", "exit 7");
    let pod = case.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(
        (&pod["status"]["phase"], &container_status(&pod)["lastState"]["terminated"]["exitCode"]),
        (&json!("Running"), &json!(7))
    );
}

fn restart_again_after_the_back_off(case: &Case<'_>) {
    policy(case, "p", "Always", "exit 1");
    case.wait_waiting("p", "CrashLoopBackOff");
    case.wait("p", "is started a third time", |p| restarts(p, 0) == 2);
}

fn restart_on_failure_exit_zero(case: &Case<'_>) {
    policy(case, "p", "OnFailure", "exit 0");
    assert_eq!(restarts(&case.wait_phase("p", "Succeeded"), 0), 0);
}

fn restart_on_failure_exit_non_zero(case: &Case<'_>) {
    policy(case, "p", "OnFailure", "[ -e /shared/again ] && exit 0; touch /shared/again; exit 1");
    case.wait("p", "runs again", |p| {
        assert_ne!(p["status"]["phase"], "Failed");
        restarts(p, 0) == 1
    });
    case.wait_phase("p", "Succeeded");
}

fn restart_never_exit_zero(case: &Case<'_>) {
    policy(case, "p", "Never", "exit 0");
    assert_eq!(restarts(&case.wait_phase("p", "Succeeded"), 0), 0);
}

fn restart_never_exit_non_zero(case: &Case<'_>) {
    policy(case, "p", "Never", "exit 1");
    assert_eq!(restarts(&case.wait_phase("p", "Failed"), 0), 0);
}

/// Before a container has been started, the pod is Pending whatever the others do.
fn runs(pod: &Value, at: usize) -> bool {
    pod["status"]["containerStatuses"][at]["state"]["running"].is_object()
}

/// Two containers: the first fails, the second exits with `code` once /shared/go exists.
fn two(case: &Case<'_>, policy: &str, code: u8) {
    let second = format!("while [ ! -e /shared/go ]; do sleep 0.1; done; exit {code}");
    let both = json!([{"name": "a", "command": shell("[ -e /shared/well ] && exit 0; exit 1")},
        {"name": "b", "command": shell(&second)}]);
    case.pod("p", json!({"restartPolicy": policy, "containers": both}));
}

fn two_containers_always_first_fails(case: &Case<'_>) {
    two(case, "Always", 0);
    let pod = case.wait("p", "restarts the first beside the second", |p| restarts(p, 0) > 0 && runs(p, 1));
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 1)), (&json!("Running"), 0));
    case.shared.touch("go");
    let pod = case.wait("p", "restarts the second", |p| restarts(p, 1) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn two_containers_on_failure_first_fails_second_ends(case: &Case<'_>) {
    two(case, "OnFailure", 0);
    let pod = case.wait("p", "restarts the first beside the second", |p| restarts(p, 0) > 0 && runs(p, 1));
    assert_eq!(pod["status"]["phase"], "Running");
    case.shared.touch("go");
    let pod = case
        .wait("p", "is left by the second", |p| p["status"]["containerStatuses"][1]["state"]["terminated"].is_object());
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 1)), (&json!("Running"), 0));
    case.shared.touch("well");
    case.wait_phase("p", "Succeeded");
}

fn two_containers_never_first_fails(case: &Case<'_>) {
    two(case, "Never", 0);
    let pod = case.wait("p", "has lost the first", |p| {
        container_status(p)["state"]["terminated"].is_object()
            && p["status"]["containerStatuses"][1]["state"]["running"].is_object()
    });
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 0)), (&json!("Running"), 0));
}

fn two_containers_never_second_exits(case: &Case<'_>) {
    two(case, "Never", 0);
    case.shared.touch("go");
    let pod = case.wait_phase("p", "Failed");
    assert_eq!((restarts(&pod, 0), restarts(&pod, 1)), (0, 0));
}

fn oom_killed_always(case: &Case<'_>) {
    hungry(case, "p", "Always");
    // Docker may report the reason after the exit.
    let pod = case.wait("p", "is restarted, and why is shown", |p| {
        restarts(p, 0) > 0 && container_status(p)["lastState"]["terminated"]["reason"] == "OOMKilled"
    });
    assert_eq!(pod["status"]["phase"], "Running");
}

fn oom_killed_on_failure(case: &Case<'_>) {
    hungry(case, "p", "OnFailure");
    let pod = case.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn oom_killed_never(case: &Case<'_>) {
    hungry(case, "p", "Never");
    let pod = case.wait("p", "has failed, and why is shown", |p| {
        p["status"]["phase"] == "Failed" && container_status(p)["state"]["terminated"]["reason"] == "OOMKilled"
    });
    assert_eq!(container_status(&pod)["state"]["terminated"]["exitCode"], 137);
}

fn no_restart_while_being_deleted(case: &Case<'_>) {
    let line = "echo run >> /shared/runs; trap 'exit 1' TERM; while :; do sleep 0.1; done";
    case.shell("p", line, json!({}), json!({"terminationGracePeriodSeconds": 10}));
    case.wait_ready("p");
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("runs"), ["run"]);
    case.wait_containers_removed("p", "main");
}

fn sandbox_replaced_when_it_ends(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell("echo init >> /shared/init")}],
            "containers": [{"name": "main", "command": shell(SLEEP_FOREVER)}]}),
    );
    case.wait_ready("p");
    let before = case.ids("p", "POD");
    let _ = case.testbed.docker(&["kill", &before[0]]);
    case.wait_for_event("p", "SandboxChanged");
    case.wait("p", "runs again", |p| {
        restarts(p, 0) == 1
            && container_status(p)["ready"] == true
            && condition(p, "PodReadyToStartContainers")["status"] == "True"
    });
    let after = case.inspect("p", "POD");
    assert!(text(&after["Name"]).ends_with("_1") && after["Id"] != before[0], "{}", after["Name"]);
    assert_eq!(case.shared.lines("init"), ["init", "init"]);
}

fn no_sandbox_once_all_have_ended(case: &Case<'_>) {
    policy(case, "p", "Never", "exit 0");
    case.wait_phase("p", "Succeeded");
    case.wait_removed("p", &["POD"]);
    // It is not replaced.
    case.wait_for_event("p", "Started");
    assert!(!case.events("p").contains("SandboxChanged"));
}

fn init_containers_run_one_after_another(case: &Case<'_>) {
    let note = |word: &str| shell(&format!("echo {word}+ >> /shared/order; sleep 0.3; echo {word}- >> /shared/order"));
    case.pod(
        "p",
        json!({"restartPolicy": "Never",
            "initContainers": [{"name": "z", "command": note("first")}, {"name": "a", "command": note("second")}],
            "containers": [{"name": "main", "command": note("main")}]}),
    );
    case.wait_phase("p", "Succeeded");
    assert_eq!(case.shared.lines("order"), ["first+", "first-", "second+", "second-", "main+", "main-"]);
}

fn init_container_failed_is_run_again(case: &Case<'_>) {
    let init = "echo init >> /shared/init; [ $(wc -l < /shared/init) -ge 2 ]";
    case.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell(init)}],
            "containers": [{"name": "main", "command": shell(SLEEP_FOREVER)}]}),
    );
    let pod = case.wait_ready("p");
    let init = &pod["status"]["initContainerStatuses"][0];
    assert_eq!((&init["restartCount"], &init["ready"]), (&json!(1), &json!(true)));
    assert_eq!(init["state"]["terminated"]["reason"], "Completed");
}

fn sidecar_starts_before_the_next(case: &Case<'_>) {
    let side = json!({"name": "side", "restartPolicy": "Always", "command": shell(SLEEP_FOREVER),
        "startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1, "failureThreshold": 100}});
    case.pod(
        "p",
        json!({"initContainers": [side, {"name": "init", "command": shell("touch /shared/init")}],
            "containers": [{"name": "main", "command": shell(SLEEP_FOREVER)}]}),
    );
    case.wait_for_event("p", "Startup probe failed");
    assert!(!case.shared.0.join("init").exists());
    case.shared.touch("begun");
    let pod = case.wait_ready("p");
    assert!(case.shared.0.join("init").exists());
    assert_eq!(pod["status"]["initContainerStatuses"][0]["started"], true);
}

fn sidecars_end_after_the_main_containers(case: &Case<'_>) {
    let side = "trap 'echo side >> /shared/ends; exit 0' TERM; while :; do sleep 0.1; done";
    case.pod(
        "p",
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 10,
            "initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell(side)}],
            "containers": [{"name": "main", "command": shell("sleep 0.5; echo main >> /shared/ends")}]}),
    );
    case.wait_phase("p", "Succeeded");
    assert_eq!(case.shared.lines("ends"), ["main", "side"]);
}

fn containers_start_in_spec_order(case: &Case<'_>) {
    let slow = json!({"postStart": {"exec": {"command": ["sh", "-c", "sleep 1; touch /shared/hooked"]}}});
    case.pod(
        "p",
        json!({"containers": [{"name": "z", "command": shell(SLEEP_FOREVER), "lifecycle": slow},
            {"name": "a", "command": shell("ls /shared > /tmp/seen; mv /tmp/seen /shared/seen; exec sleep 100000")}]}),
    );
    case.wait_ready("p");
    assert!(case.output("seen").contains(&"hooked".to_owned()));
}

fn ephemeral_container_is_run_once(case: &Case<'_>) {
    policy(case, "p", "Always", "exec sleep 54321");
    case.wait_ready("p");
    let debug = ["debug", "p", "--image=windlass/busybox:1", "--target=main", "-c", "look", "--", "sh", "-c"];
    let _ = case.kubectl(&[&debug[..], &["ps > /proc/1/cwd/dev/null; ps; exit 3"]].concat());
    let look = |p: &Value| p["status"]["ephemeralContainerStatuses"][0].clone();
    let pod = case.wait("p", "shows how the visitor ended", |p| look(p)["state"]["terminated"]["exitCode"] == 3);
    assert_eq!((&look(&pod)["restartCount"], &pod["status"]["phase"]), (&json!(0), &json!("Running")));
    // It shared the process namespace of its target.
    let target = case.ids("p", "main");
    assert_eq!(case.inspect("p", "look")["HostConfig"]["PidMode"], format!("container:{}", target[0]));
}

fn container_hash_changed_by_an_image(case: &Case<'_>) {
    let _ = case.testbed.docker(&["tag", "windlass/busybox:1", "windlass/busybox:hash"]);
    policy(case, "p", "Always", SLEEP_FOREVER);
    case.wait_ready("p");
    let patch = json!({"spec": {"containers": [{"name": "main", "image": "windlass/busybox:hash"}]}});
    let _ = case.kubectl(&["patch", "pod", "p", "-p", &patch.to_string()]);
    case.wait_for_event("p", "Container main definition changed, will be restarted");
    let pod = case.wait("p", "runs the other image", |p| restarts(p, 0) == 1 && container_status(p)["ready"] == true);
    assert_eq!(container_status(&pod)["image"], "windlass/busybox:hash");
}

fn active_deadline_seconds_may_change(case: &Case<'_>) {
    policy(case, "p", "Always", SLEEP_FOREVER);
    case.wait_ready("p");
    let _ = case.kubectl(&["patch", "pod", "p", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    let pod = case.wait_phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
}

fn crashing_sidecar_does_not_block_others(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell("sleep 1; exit 1")}],
            "containers": [{"name": "main", "command": shell("sleep 3")}]}),
    );
    case.wait("p", "has a sidecar that is held back, and goes on", |p| {
        let side = &p["status"]["initContainerStatuses"][0]["state"];
        side["waiting"]["reason"] == "CrashLoopBackOff"
            && restarts(p, 0) > 0
            && container_status(p)["state"]["running"].is_object()
    });
}

fn init_containers_that_are_removed_are_not_run_again(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell("echo ran >> /shared/init")}],
            "containers": [{"name": "main", "command": shell(SLEEP_FOREVER)}]}),
    );
    let before = case.wait_ready("p");
    let id =
        text(&before["status"]["initContainerStatuses"][0]["containerID"]).trim_start_matches("docker://").to_owned();
    let _ = case.testbed.docker(&["rm", &id]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let after = case.wait_ready("p");
    assert_eq!(case.shared.lines("init"), ["ran"]);
    assert_eq!(after["status"]["initContainerStatuses"], before["status"]["initContainerStatuses"]);
    assert_eq!(container_status(&after)["restartCount"], 0);
}

/// A container with a pod's labels but without a known pod is removed at the next relist.
fn containers_of_an_unknown_pod_are_killed(case: &Case<'_>) {
    let labels = [
        "io.kubernetes.docker.type=container".to_owned(),
        "io.kubernetes.container.name=main".to_owned(),
        "io.kubernetes.pod.name=nobody".to_owned(),
        format!("io.kubernetes.pod.namespace={}", case.namespace),
        "io.kubernetes.pod.uid=11111111-2222-3333-4444-555555555555".to_owned(),
        "annotation.io.kubernetes.pod.terminationGracePeriod=1".to_owned(),
    ];
    // Labels alone may be an image's: the name belongs to it.
    let name = format!("k8s_main_nobody_{}_11111111-2222-3333-4444-555555555555_0", case.namespace);
    let mut args = vec!["run", "-d", "--network=none", "--name", &name];
    labels.iter().for_each(|label| args.extend(["--label", label.as_str()]));
    args.extend(["windlass/busybox:1", "sleep", "100000"]);
    let id = case.testbed.docker(&args).trim().to_owned();
    // The node relists every minute.
    eventually(DEFAULT_TIMEOUT * 2, "the container is removed", || {
        let left = case.testbed.docker(&["ps", "-aq", "--no-trunc", "--filter", &format!("id={id}")]);
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
}
