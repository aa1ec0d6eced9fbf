//! Phases, what follows the end of a container under each policy, and what a sync of the pod does.

use serde_json::{Value, json};
use windlass_tests::{
    PATIENCE, eventually,
    sharing::{condition, main_of, shell},
};

use crate::row::{Row, STAY, text};

crate::rows![
    phase_failed_by_an_init_container,
    phase_pending_while_init_containers_run,
    phase_pending_while_a_container_never_started,
    phase_running_with_one_of_two,
    phase_running_while_one_may_restart,
    phase_succeeded_when_all_exit_zero,
    phase_failed_when_one_exits_non_zero,
    phase_is_not_held_by_a_stopped_sidecar,
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
    sidecar_that_crashes_does_not_hold_up_the_others,
    init_containers_that_are_removed_are_not_run_again,
    containers_of_an_unknown_pod_are_ended,
    sidecars_end_after_the_main_containers,
    containers_start_in_spec_order,
    ephemeral_container_is_run_once,
    container_hash_changed_by_an_image,
    active_deadline_seconds_may_change,
];

fn policy(row: &Row<'_>, name: &str, policy: &str, line: &str) {
    row.shell(name, line, json!({}), json!({"restartPolicy": policy}));
}

fn restarts(pod: &Value, at: usize) -> u64 {
    pod["status"]["containerStatuses"][at]["restartCount"].as_u64().unwrap_or(0)
}

/// A container that runs out of its memory.
fn hungry(row: &Row<'_>, name: &str, policy: &str) {
    let resources = json!({"resources": {"limits": {"memory": "16Mi"}}});
    let line = "tail /dev/zero";
    row.shell(name, line, resources, json!({"restartPolicy": policy}));
}

fn phase_failed_by_an_init_container(row: &Row<'_>) {
    let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "init", "command": shell("exit 3")}],
        "containers": [{"name": "main", "command": shell("touch /shared/ran")}]});
    row.pod("p", spec);
    let pod = row.phase("p", "Failed");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert!(!row.shared.0.join("ran").exists());
}

fn phase_pending_while_init_containers_run(row: &Row<'_>) {
    let init = "while [ ! -e /shared/go ]; do sleep 0.1; done";
    row.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell(init)}],
            "containers": [{"name": "main", "command": shell(STAY)}]}),
    );
    let pod = row.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(main_of(&pod)["state"]["waiting"]["reason"], "PodInitializing");
    row.shared.put("go");
    row.phase("p", "Running");
}

fn phase_pending_while_a_container_never_started(row: &Row<'_>) {
    row.pod(
        "p",
        json!({"containers": [{"name": "a", "command": shell(STAY)},
            {"name": "b", "image": "windlass/none:1", "imagePullPolicy": "Never"}]}),
    );
    let pod = row.wait("p", "has one running", |p| {
        let all = &p["status"]["containerStatuses"];
        all[0]["state"]["running"].is_object() && all[1]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert_eq!(pod["status"]["phase"], "Pending");
}

fn phase_running_with_one_of_two(row: &Row<'_>) {
    row.pod(
        "p",
        json!({"restartPolicy": "Never", "containers": [{"name": "a", "command": shell("exit 0")},
            {"name": "b", "command": shell(STAY)}]}),
    );
    let pod = row.wait("p", "has one left", |p| {
        let all = &p["status"]["containerStatuses"];
        all[0]["state"]["terminated"].is_object() && all[1]["state"]["running"].is_object()
    });
    assert_eq!(pod["status"]["phase"], "Running");
}

fn phase_running_while_one_may_restart(row: &Row<'_>) {
    policy(row, "p", "Always", "exit 1");
    row.waiting("p", "CrashLoopBackOff");
    assert_eq!(row.kubectl(&["get", "pod", "p", "-o", "jsonpath={.status.phase}"]), "Running");
}

fn phase_succeeded_when_all_exit_zero(row: &Row<'_>) {
    let both = json!([{"name": "a", "command": shell("exit 0")}, {"name": "b", "command": shell("exit 0")}]);
    row.pod("p", json!({"restartPolicy": "OnFailure", "containers": both}));
    row.phase("p", "Succeeded");
}

fn phase_failed_when_one_exits_non_zero(row: &Row<'_>) {
    let both = json!([{"name": "a", "command": shell("exit 0")}, {"name": "b", "command": shell("exit 1")}]);
    row.pod("p", json!({"restartPolicy": "Never", "containers": both}));
    row.phase("p", "Failed");
}

fn phase_is_not_held_by_a_stopped_sidecar(row: &Row<'_>) {
    let side = "trap 'exit 9' TERM; while :; do sleep 0.1; done";
    row.pod(
        "p",
        json!({"restartPolicy": "Never",
            "initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell(side)}],
            "containers": [{"name": "main", "command": shell("sleep 1")}]}),
    );
    let pod = row.phase("p", "Succeeded");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 9);
}

fn phase_terminal_only_after_the_last_end(row: &Row<'_>) {
    let slow = "trap 'sleep 2; exit 0' TERM; while :; do sleep 0.1; done";
    row.shell("p", slow, json!({}), json!({"terminationGracePeriodSeconds": 20}));
    row.ready("p");
    let _ = row.kubectl(&["patch", "pod", "p", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    // Whenever it is told that it has failed, nothing runs any more.
    let pod = row.wait("p", "fails", |p| {
        let running = main_of(p)["state"]["running"].is_object();
        let failed = p["status"]["phase"] == "Failed";
        assert!(!(failed && running), "{}", p["status"]);
        failed
    });
    assert_eq!(main_of(&pod)["state"]["terminated"]["exitCode"], 0);
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
}

fn restart_always_exit_zero(row: &Row<'_>) {
    policy(row, "p", "Always", "exit 0");
    let pod = row.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(
        (&pod["status"]["phase"], &main_of(&pod)["lastState"]["terminated"]["exitCode"]),
        (&json!("Running"), &json!(0))
    );
}

fn restart_always_exit_non_zero(row: &Row<'_>) {
    policy(row, "p", "Always", "exit 7");
    let pod = row.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(
        (&pod["status"]["phase"], &main_of(&pod)["lastState"]["terminated"]["exitCode"]),
        (&json!("Running"), &json!(7))
    );
}

fn restart_again_after_the_back_off(row: &Row<'_>) {
    policy(row, "p", "Always", "exit 1");
    row.waiting("p", "CrashLoopBackOff");
    row.wait("p", "is started a third time", |p| restarts(p, 0) == 2);
}

fn restart_on_failure_exit_zero(row: &Row<'_>) {
    policy(row, "p", "OnFailure", "exit 0");
    assert_eq!(restarts(&row.phase("p", "Succeeded"), 0), 0);
}

fn restart_on_failure_exit_non_zero(row: &Row<'_>) {
    policy(row, "p", "OnFailure", "[ -e /shared/again ] && exit 0; touch /shared/again; exit 1");
    row.wait("p", "runs again", |p| {
        assert_ne!(p["status"]["phase"], "Failed");
        restarts(p, 0) == 1
    });
    row.phase("p", "Succeeded");
}

fn restart_never_exit_zero(row: &Row<'_>) {
    policy(row, "p", "Never", "exit 0");
    assert_eq!(restarts(&row.phase("p", "Succeeded"), 0), 0);
}

fn restart_never_exit_non_zero(row: &Row<'_>) {
    policy(row, "p", "Never", "exit 1");
    assert_eq!(restarts(&row.phase("p", "Failed"), 0), 0);
}

/// Two containers: the first fails, the second ends with `code` once /shared/go is there.
fn two(row: &Row<'_>, policy: &str, code: u8) {
    let second = format!("while [ ! -e /shared/go ]; do sleep 0.1; done; exit {code}");
    let both = json!([{"name": "a", "command": shell("[ -e /shared/well ] && exit 0; exit 1")},
        {"name": "b", "command": shell(&second)}]);
    row.pod("p", json!({"restartPolicy": policy, "containers": both}));
}

fn two_containers_always_first_fails(row: &Row<'_>) {
    two(row, "Always", 0);
    let pod = row.wait("p", "restarts the first", |p| restarts(p, 0) > 0);
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 1)), (&json!("Running"), 0));
    row.shared.put("go");
    let pod = row.wait("p", "restarts the second", |p| restarts(p, 1) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn two_containers_on_failure_first_fails_second_ends(row: &Row<'_>) {
    two(row, "OnFailure", 0);
    let pod = row.wait("p", "restarts the first", |p| restarts(p, 0) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
    row.shared.put("go");
    let pod = row
        .wait("p", "is left by the second", |p| p["status"]["containerStatuses"][1]["state"]["terminated"].is_object());
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 1)), (&json!("Running"), 0));
    row.shared.put("well");
    row.phase("p", "Succeeded");
}

fn two_containers_never_first_fails(row: &Row<'_>) {
    two(row, "Never", 0);
    let pod = row.wait("p", "has lost the first", |p| {
        main_of(p)["state"]["terminated"].is_object()
            && p["status"]["containerStatuses"][1]["state"]["running"].is_object()
    });
    assert_eq!((&pod["status"]["phase"], restarts(&pod, 0)), (&json!("Running"), 0));
}

fn two_containers_never_second_exits(row: &Row<'_>) {
    two(row, "Never", 0);
    row.shared.put("go");
    let pod = row.phase("p", "Failed");
    assert_eq!((restarts(&pod, 0), restarts(&pod, 1)), (0, 0));
}

fn oom_killed_always(row: &Row<'_>) {
    hungry(row, "p", "Always");
    let pod = row.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(main_of(&pod)["lastState"]["terminated"]["reason"], "OOMKilled");
}

fn oom_killed_on_failure(row: &Row<'_>) {
    hungry(row, "p", "OnFailure");
    let pod = row.wait("p", "is restarted", |p| restarts(p, 0) > 0);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn oom_killed_never(row: &Row<'_>) {
    hungry(row, "p", "Never");
    let ended = main_of(&row.phase("p", "Failed"))["state"]["terminated"].clone();
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("OOMKilled"), &json!(137)));
}

fn no_restart_while_being_deleted(row: &Row<'_>) {
    let line = "echo run >> /shared/runs; trap 'exit 1' TERM; while :; do sleep 0.1; done";
    row.shell("p", line, json!({}), json!({"terminationGracePeriodSeconds": 10}));
    row.ready("p");
    let _ = row.kubectl(&["delete", "pod", "p"]);
    assert_eq!(row.shared.lines("runs"), ["run"]);
    row.ended("p", "main");
}

fn sandbox_replaced_when_it_ends(row: &Row<'_>) {
    row.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell("echo init >> /shared/init")}],
            "containers": [{"name": "main", "command": shell(STAY)}]}),
    );
    row.ready("p");
    let before = row.ids("p", "POD");
    let _ = row.world.docker(&["kill", &before[0]]);
    row.says("p", "SandboxChanged");
    row.wait("p", "runs again", |p| {
        restarts(p, 0) == 1
            && main_of(p)["ready"] == true
            && condition(p, "PodReadyToStartContainers")["status"] == "True"
    });
    let after = row.inspect("p", "POD");
    assert!(text(&after["Name"]).ends_with("_1") && after["Id"] != before[0], "{}", after["Name"]);
    assert_eq!(row.shared.lines("init"), ["init", "init"]);
}

fn no_sandbox_once_all_have_ended(row: &Row<'_>) {
    policy(row, "p", "Never", "exit 0");
    row.phase("p", "Succeeded");
    row.removed("p", &["POD"]);
    // And none comes in its place.
    row.says("p", "Started");
    assert!(!row.events("p").contains("SandboxChanged"));
}

fn init_containers_run_one_after_another(row: &Row<'_>) {
    let note = |word: &str| shell(&format!("echo {word}+ >> /shared/order; sleep 0.3; echo {word}- >> /shared/order"));
    row.pod(
        "p",
        json!({"restartPolicy": "Never",
            "initContainers": [{"name": "z", "command": note("first")}, {"name": "a", "command": note("second")}],
            "containers": [{"name": "main", "command": note("main")}]}),
    );
    row.phase("p", "Succeeded");
    assert_eq!(row.shared.lines("order"), ["first+", "first-", "second+", "second-", "main+", "main-"]);
}

fn init_container_failed_is_run_again(row: &Row<'_>) {
    let init = "echo init >> /shared/init; [ $(wc -l < /shared/init) -ge 2 ]";
    row.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell(init)}],
            "containers": [{"name": "main", "command": shell(STAY)}]}),
    );
    let pod = row.ready("p");
    let init = &pod["status"]["initContainerStatuses"][0];
    assert_eq!((&init["restartCount"], &init["ready"]), (&json!(1), &json!(true)));
    assert_eq!(init["state"]["terminated"]["reason"], "Completed");
}

fn sidecar_starts_before_the_next(row: &Row<'_>) {
    let side = json!({"name": "side", "restartPolicy": "Always", "command": shell(STAY),
        "startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1, "failureThreshold": 100}});
    row.pod(
        "p",
        json!({"initContainers": [side, {"name": "init", "command": shell("touch /shared/init")}],
            "containers": [{"name": "main", "command": shell(STAY)}]}),
    );
    row.says("p", "Startup probe failed");
    assert!(!row.shared.0.join("init").exists());
    row.shared.put("begun");
    let pod = row.ready("p");
    assert!(row.shared.0.join("init").exists());
    assert_eq!(pod["status"]["initContainerStatuses"][0]["started"], true);
}

fn sidecars_end_after_the_main_containers(row: &Row<'_>) {
    let side = "trap 'echo side >> /shared/ends; exit 0' TERM; while :; do sleep 0.1; done";
    row.pod(
        "p",
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 10,
            "initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell(side)}],
            "containers": [{"name": "main", "command": shell("sleep 0.5; echo main >> /shared/ends")}]}),
    );
    row.phase("p", "Succeeded");
    assert_eq!(row.shared.lines("ends"), ["main", "side"]);
}

fn containers_start_in_spec_order(row: &Row<'_>) {
    let slow = json!({"postStart": {"exec": {"command": ["sh", "-c", "sleep 1; touch /shared/hooked"]}}});
    row.pod(
        "p",
        json!({"containers": [{"name": "z", "command": shell(STAY), "lifecycle": slow},
            {"name": "a", "command": shell("ls /shared > /tmp/seen; mv /tmp/seen /shared/seen; exec sleep 100000")}]}),
    );
    row.ready("p");
    assert!(row.printed("seen").contains(&"hooked".to_owned()));
}

fn ephemeral_container_is_run_once(row: &Row<'_>) {
    policy(row, "p", "Always", "exec sleep 54321");
    row.ready("p");
    let debug = ["debug", "p", "--image=windlass/busybox:1", "--target=main", "-c", "look", "--", "sh", "-c"];
    let _ = row.kubectl(&[&debug[..], &["ps > /proc/1/cwd/dev/null; ps; exit 3"]].concat());
    let look = |p: &Value| p["status"]["ephemeralContainerStatuses"][0].clone();
    let pod = row.wait("p", "shows how the visitor ended", |p| look(p)["state"]["terminated"]["exitCode"] == 3);
    assert_eq!((&look(&pod)["restartCount"], &pod["status"]["phase"]), (&json!(0), &json!("Running")));
    // It was among the processes of its target.
    let target = row.ids("p", "main");
    assert_eq!(row.inspect("p", "look")["HostConfig"]["PidMode"], format!("container:{}", target[0]));
}

fn container_hash_changed_by_an_image(row: &Row<'_>) {
    let _ = row.world.docker(&["tag", "windlass/busybox:1", "windlass/busybox:hash"]);
    policy(row, "p", "Always", STAY);
    row.ready("p");
    let patch = json!({"spec": {"containers": [{"name": "main", "image": "windlass/busybox:hash"}]}});
    let _ = row.kubectl(&["patch", "pod", "p", "-p", &patch.to_string()]);
    row.says("p", "Container main definition changed, will be restarted");
    let pod = row.wait("p", "runs the other image", |p| restarts(p, 0) == 1 && main_of(p)["ready"] == true);
    assert_eq!(main_of(&pod)["image"], "windlass/busybox:hash");
}

fn active_deadline_seconds_may_change(row: &Row<'_>) {
    policy(row, "p", "Always", STAY);
    row.ready("p");
    let _ = row.kubectl(&["patch", "pod", "p", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    let pod = row.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
}

fn sidecar_that_crashes_does_not_hold_up_the_others(row: &Row<'_>) {
    row.pod(
        "p",
        json!({"initContainers": [{"name": "side", "restartPolicy": "Always", "command": shell("sleep 1; exit 1")}],
            "containers": [{"name": "main", "command": shell("sleep 3")}]}),
    );
    row.wait("p", "has a sidecar that is held back, and goes on", |p| {
        let side = &p["status"]["initContainerStatuses"][0]["state"];
        side["waiting"]["reason"] == "CrashLoopBackOff"
            && restarts(p, 0) > 0
            && main_of(p)["state"]["running"].is_object()
    });
}

fn init_containers_that_are_removed_are_not_run_again(row: &Row<'_>) {
    row.pod(
        "p",
        json!({"initContainers": [{"name": "init", "command": shell("echo ran >> /shared/init")}],
            "containers": [{"name": "main", "command": shell(STAY)}]}),
    );
    let before = row.ready("p");
    let id =
        text(&before["status"]["initContainerStatuses"][0]["containerID"]).trim_start_matches("docker://").to_owned();
    let _ = row.world.docker(&["rm", &id]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let after = row.ready("p");
    assert_eq!(row.shared.lines("init"), ["ran"]);
    assert_eq!(after["status"]["initContainerStatuses"], before["status"]["initContainerStatuses"]);
    assert_eq!(main_of(&after)["restartCount"], 0);
}

/// What looks like a pod's and is no pod's that anybody knows ends with the next look at all that Docker has.
fn containers_of_an_unknown_pod_are_ended(row: &Row<'_>) {
    let labels = [
        "io.kubernetes.docker.type=container".to_owned(),
        "io.kubernetes.container.name=main".to_owned(),
        "io.kubernetes.pod.name=nobody".to_owned(),
        format!("io.kubernetes.pod.namespace={}", row.namespace),
        "io.kubernetes.pod.uid=11111111-2222-3333-4444-555555555555".to_owned(),
        "annotation.io.kubernetes.pod.terminationGracePeriod=1".to_owned(),
    ];
    let mut args = vec!["run", "-d", "--network=none"];
    labels.iter().for_each(|label| args.extend(["--label", label.as_str()]));
    args.extend(["windlass/busybox:1", "sleep", "100000"]);
    let id = row.world.docker(&args).trim().to_owned();
    // The node looks each minute.
    eventually(PATIENCE * 2, "the container is removed", || {
        let left = row.world.docker(&["ps", "-aq", "--no-trunc", "--filter", &format!("id={id}")]);
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
}
