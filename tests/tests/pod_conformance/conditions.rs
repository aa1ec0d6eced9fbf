//! The conditions of a pod, with their reasons.

use serde_json::json;
use windlass_tests::shared_dir::{condition, container_status, is_ready, shell};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    pod_scheduled,
    pod_ready_to_start_containers,
    initialized,
    initialized_false_containers_not_initialized,
    containers_ready_false_containers_not_ready,
    containers_ready_false_pod_completed,
    containers_ready_false_pod_failed,
    ready,
    ready_false_readiness_gates_not_ready,
    observed_generation,
    last_transition_time_moves_only_with_the_status,
    conditions_of_others_stay,
];

fn pod_scheduled(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    assert_eq!(condition(&case.wait_ready("p"), "PodScheduled")["status"], "True");
}

fn pod_ready_to_start_containers(case: &Case<'_>) {
    // The sandbox exists although the container cannot be created.
    let env = json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x"}}}]});
    case.shell("waits", SLEEP_FOREVER, env, json!({}));
    case.wait("waits", "has a sandbox", |p| condition(p, "PodReadyToStartContainers")["status"] == "True");
    case.shell("ends", "exit 0", json!({}), json!({"restartPolicy": "Never"}));
    case.wait("ends", "has none any more", |p| {
        p["status"]["phase"] == "Succeeded" && condition(p, "PodReadyToStartContainers")["status"] == "False"
    });
}

fn initialized(case: &Case<'_>) {
    let init = json!([{"name": "a", "command": shell("exit 0")}]);
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"initContainers": init}));
    assert_eq!(condition(&case.wait_ready("p"), "Initialized")["status"], "True");
}

fn initialized_false_containers_not_initialized(case: &Case<'_>) {
    let init = json!([{"name": "a", "command": shell(SLEEP_FOREVER)}, {"name": "b", "command": shell("exit 0")}]);
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"initContainers": init}));
    let pod = case.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    let found = condition(&pod, "Initialized");
    assert_eq!((text(&found["status"]), text(&found["reason"])), ("False", "ContainersNotInitialized"));
    assert_eq!(found["message"], "containers with incomplete status: [a b]");
}

fn containers_ready_false_containers_not_ready(case: &Case<'_>) {
    let never = json!({"readinessProbe": {"exec": {"command": ["false"]}}});
    case.shell("p", SLEEP_FOREVER, never, json!({}));
    let pod = case.wait("p", "runs", |p| container_status(p)["state"]["running"].is_object());
    for kind in ["ContainersReady", "Ready"] {
        let found = condition(&pod, kind);
        assert_eq!((text(&found["status"]), text(&found["reason"])), ("False", "ContainersNotReady"));
        assert_eq!(found["message"], "containers with unready status: [main]");
    }
}

fn containers_ready_false_pod_completed(case: &Case<'_>) {
    case.shell("p", "exit 0", json!({}), json!({"restartPolicy": "Never"}));
    let pod = case.wait_phase("p", "Succeeded");
    for kind in ["ContainersReady", "Ready"] {
        let found = condition(&pod, kind);
        assert_eq!((text(&found["status"]), text(&found["reason"])), ("False", "PodCompleted"));
    }
}

fn containers_ready_false_pod_failed(case: &Case<'_>) {
    case.shell("p", "exit 1", json!({}), json!({"restartPolicy": "Never"}));
    let pod = case.wait_phase("p", "Failed");
    for kind in ["ContainersReady", "Ready"] {
        let found = condition(&pod, kind);
        assert_eq!((text(&found["status"]), text(&found["reason"])), ("False", "PodFailed"));
    }
}

fn ready(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    let pod = case.wait_ready("p");
    assert_eq!(condition(&pod, "ContainersReady")["status"], "True");
}

fn ready_false_readiness_gates_not_ready(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"readinessGates": [{"conditionType": "example.com/gate"}]}));
    let pod = case.wait("p", "has ready containers", |p| condition(p, "ContainersReady")["status"] == "True");
    let found = condition(&pod, "Ready");
    assert_eq!((text(&found["status"]), text(&found["reason"])), ("False", "ReadinessGatesNotReady"));
    let open = |status: &str| {
        let patch = json!({"status": {"conditions": [{"type": "example.com/gate", "status": status}]}});
        let _ = case.kubectl(&["patch", "pod", "p", "--subresource=status", "-p", &patch.to_string()]);
    };
    open("True");
    case.wait_ready("p");
    open("False");
    case.wait("p", "is ready no more", |p| !is_ready(p));
}

fn observed_generation(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("p");
    let _ = case.kubectl(&["patch", "pod", "p", "-p", r#"{"spec":{"activeDeadlineSeconds":10000}}"#]);
    let pod = case.wait("p", "is seen in its second form", |p| {
        p["metadata"]["generation"] == 2 && p["status"]["observedGeneration"] == 2
    });
    for kind in ["PodScheduled", "Ready", "Initialized", "ContainersReady", "PodReadyToStartContainers"] {
        assert_eq!(condition(&pod, kind)["observedGeneration"], 2, "{kind}");
    }
}

fn last_transition_time_moves_only_with_the_status(case: &Case<'_>) {
    let probe = json!({"readinessProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]},
        "periodSeconds": 1, "failureThreshold": 1}});
    case.shell("p", SLEEP_FOREVER, probe, json!({}));
    let before = case.wait("p", "runs", |p| container_status(p)["state"]["running"].is_object());
    // Times have a resolution of seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    case.shared.touch("ready");
    let after = case.wait_ready("p");
    let since = |pod, kind| condition(pod, kind)["lastTransitionTime"].clone();
    assert_ne!(since(&before, "Ready"), since(&after, "Ready"));
    assert_eq!(since(&before, "PodScheduled"), since(&after, "PodScheduled"));
    assert_eq!(since(&before, "Initialized"), since(&after, "Initialized"));
}

fn conditions_of_others_stay(case: &Case<'_>) {
    let probe = json!({"readinessProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}});
    case.shell("p", SLEEP_FOREVER, probe, json!({}));
    case.wait("p", "runs", |p| container_status(p)["state"]["running"].is_object());
    let patch = r#"{"status":{"conditions":[{"type":"example.com/mine","status":"True","reason":"Because"}]}}"#;
    let _ = case.kubectl(&["patch", "pod", "p", "--subresource=status", "-p", patch]);
    case.shared.touch("ready");
    assert_eq!(condition(&case.wait_ready("p"), "example.com/mine")["reason"], "Because");
}
