//! Reasons: why a container waits, why it terminated, why a pod failed; and other fields of a container's status.

use serde_json::{Value, json};
use windlass_tests::shared_dir::{condition, container_status, shell};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    container_creating,
    pod_initializing,
    crash_loop_back_off_reason,
    err_image_pull,
    image_pull_back_off,
    err_image_never_pull,
    invalid_image_name,
    registry_unavailable,
    create_container_config_error,
    create_container_error,
    run_container_error,
    post_start_hook_error,
    failed_create_pod_sandbox,
    terminated_completed,
    terminated_error,
    terminated_error_by_sigkill,
    terminated_error_by_sigterm,
    terminated_start_error,
    container_status_unknown,
    deadline_exceeded,
    out_of_cpu,
    out_of_memory,
    node_ports,
    sysctl_forbidden,
    app_armor,
    pod_os_not_supported,
    pod_feature_unsupported,
    status_container_id,
    status_image_and_image_id,
    status_ready_and_started,
    status_restart_count_and_last_state,
    status_allocated_resources_and_resources,
    status_volume_mounts,
    statuses_sorted_by_name_and_init_in_spec_order,
    status_times_are_whole_seconds,
];

fn container_creating(case: &Case<'_>) {
    let spec = json!({"volumes": [{"name": "v", "configMap": {"name": "none"}}]});
    case.shell("p", SLEEP_FOREVER, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), spec);
    case.wait_for_event("p", "FailedMount");
    assert_eq!(case.wait_waiting("p", "ContainerCreating")["message"], Value::Null);
}

fn pod_initializing(case: &Case<'_>) {
    let init = json!([{"name": "init", "command": shell(SLEEP_FOREVER)}]);
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"initContainers": init}));
    case.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    case.wait_waiting("p", "PodInitializing");
}

fn crash_loop_back_off_reason(case: &Case<'_>) {
    case.shell("p", "exit 1", json!({}), json!({}));
    let waiting = case.wait_waiting("p", "CrashLoopBackOff");
    let uid = case.kubectl(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"]);
    let message = format!("back-off 10s restarting failed container=main pod=p_{}({uid})", case.namespace);
    assert_eq!(waiting["message"], message);
    case.wait_for_event("p", "BackOff Back-off restarting failed container main in pod p_");
}

fn image(case: &Case<'_>, image: &str, policy: &str) {
    case.shell("p", SLEEP_FOREVER, json!({"image": image, "imagePullPolicy": policy}), json!({}));
}

fn err_image_pull(case: &Case<'_>) {
    image(case, "127.0.0.1:5000/nowhere:1", "IfNotPresent");
    let waiting = case.wait_waiting("p", "ErrImagePull");
    assert!(text(&waiting["message"]).contains("nowhere"), "{waiting}");
    case.wait_for_event("p", "Failed Failed to pull image \"127.0.0.1:5000/nowhere:1\": ");
    case.wait_for_event("p", "Failed Error: ErrImagePull");
}

fn image_pull_back_off(case: &Case<'_>) {
    image(case, "127.0.0.1:5000/nowhere:1", "Always");
    let waiting = case.wait_waiting("p", "ImagePullBackOff");
    let words = "Back-off pulling image \"127.0.0.1:5000/nowhere:1\": ErrImagePull: ";
    assert!(text(&waiting["message"]).starts_with(words), "{waiting}");
    case.wait_for_event("p", "BackOff Back-off pulling image \"127.0.0.1:5000/nowhere:1\"");
}

fn err_image_never_pull(case: &Case<'_>) {
    image(case, "windlass/none:1", "Never");
    let message = "Container image \"windlass/none:1\" is not present with pull policy of Never";
    assert_eq!(case.wait_waiting("p", "ErrImageNeverPull")["message"], message);
    case.wait_for_event("p", &format!("ErrImageNeverPull {message}"));
}

fn invalid_image_name(case: &Case<'_>) {
    image(case, "Windlass/Upper:1", "Always");
    let waiting = case.wait_waiting("p", "InvalidImageName");
    assert!(text(&waiting["message"]).contains("Windlass/Upper:1"), "{waiting}");
    case.wait_for_event("p", "InspectFailed");
}

fn registry_unavailable(case: &Case<'_>) {
    let _ = case.http_get("");
    image(case, "127.0.0.1:8104/any:1", "Always");
    case.wait_waiting("p", "RegistryUnavailable");
}

fn create_container_config_error(case: &Case<'_>) {
    let env = json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x"}}}]});
    case.shell("p", SLEEP_FOREVER, env, json!({}));
    case.wait_waiting("p", "CreateContainerConfigError");
    case.wait_for_event("p", "Failed Error: configmap \"none\" not found");
}

fn create_container_error(case: &Case<'_>) {
    // Docker requires an absolute path, and rejects it at creation.
    case.shell("p", SLEEP_FOREVER, json!({"workingDir": "not/absolute"}), json!({}));
    let waiting = case.wait_waiting("p", "CreateContainerError");
    assert!(text(&waiting["message"]).contains("working directory"), "{waiting}");
}

fn run_container_error(case: &Case<'_>) {
    case.shell("p", "", json!({"command": ["/no/such/program"]}), json!({}));
    let waiting = case.wait_waiting("p", "RunContainerError");
    assert!(text(&waiting["message"]).contains("/no/such/program"), "{waiting}");
}

fn post_start_hook_error(case: &Case<'_>) {
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo why; exit 4"]}}}});
    case.shell("p", SLEEP_FOREVER, hook, json!({}));
    case.wait_for_event("p", "FailedPostStartHook");
    case.wait_waiting("p", "PostStartHookError");
}

fn failed_create_pod_sandbox(case: &Case<'_>) {
    let spec = json!({"hostname": "h".repeat(60), "subdomain": "web", "setHostnameAsFQDN": true});
    case.shell("p", SLEEP_FOREVER, json!({}), spec);
    case.wait_for_event("p", "FailedCreatePodSandBox");
    let pod = case.wait("p", "waits", |p| p["status"]["phase"] == "Pending");
    assert_eq!(condition(&pod, "PodReadyToStartContainers")["status"], "False");
}

/// The terminated state of a container that runs a line once.
fn ended(case: &Case<'_>, line: &str) -> Value {
    case.shell("p", line, json!({}), json!({"restartPolicy": "Never"}));
    let pod = case.wait("p", "has ended", |p| container_status(p)["state"]["terminated"].is_object());
    container_status(&pod)["state"]["terminated"].clone()
}

#[track_caller]
fn is(ended: &Value, reason: &str, code: i64) {
    assert_eq!((text(&ended["reason"]), ended["exitCode"].as_i64()), (reason, Some(code)), "{ended}");
}

fn terminated_completed(case: &Case<'_>) {
    is(&ended(case, "exit 0"), "Completed", 0);
}

fn terminated_error(case: &Case<'_>) {
    is(&ended(case, "exit 3"), "Error", 3);
}

fn terminated_error_by_sigkill(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"restartPolicy": "Never"}));
    case.wait_ready("p");
    let _ = case.testbed.docker(&["kill", &case.ids("p", "main")[0]]);
    is(&container_status(&case.wait_phase("p", "Failed"))["state"]["terminated"], "Error", 137);
}

fn terminated_error_by_sigterm(case: &Case<'_>) {
    // A shell that is not the first process dies from the signal; `$$` escapes a dollar.
    is(&ended(case, "sh -c 'kill -TERM $$$$'; exit $?"), "Error", 143);
}

fn terminated_start_error(case: &Case<'_>) {
    case.shell("p", "", json!({"command": ["/no/such/program"]}), json!({"restartPolicy": "Never"}));
    let ended = container_status(&case.wait_phase("p", "Failed"))["state"]["terminated"].clone();
    is(&ended, "StartError", 128);
    assert!(text(&ended["message"]).contains("/no/such/program"), "{ended}");
}

fn container_status_unknown(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("p");
    let _ = case.testbed.docker(&["rm", "-f", &case.ids("p", "main")[0]]);
    let pod = case
        .wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    assert_eq!(container_status(&pod)["lastState"]["terminated"]["exitCode"], 137, "{pod}");
}

fn deadline_exceeded(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"activeDeadlineSeconds": 1}));
    let pod = case.wait_phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    assert_eq!(pod["status"]["message"], "Pod was active on the node longer than the specified deadline");
    case.wait_for_event("p", "DeadlineExceeded");
}

/// A pod bound to this node without the scheduler.
#[track_caller]
fn refused(case: &Case<'_>, container: Value, mut spec: Value, reason: &str) {
    spec["nodeName"] = json!("node");
    case.shell("p", "touch /shared/ran", container, spec);
    let pod = case.wait_phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], reason, "{}", pod["status"]);
    assert!(text(&pod["status"]["message"]).starts_with("Pod was rejected: "), "{}", pod["status"]);
    case.wait_for_event("p", reason);
    assert!(case.ids("p", "POD").is_empty() && !case.shared.0.join("ran").exists());
}

fn asks(resource: &str, amount: &str) -> Value {
    json!({"resources": {"requests": {resource: amount}, "limits": {resource: amount}}})
}

fn out_of_cpu(case: &Case<'_>) {
    refused(case, asks("cpu", "4000"), json!({}), "OutOfcpu");
}

fn out_of_memory(case: &Case<'_>) {
    refused(case, asks("memory", "100Ti"), json!({}), "OutOfmemory");
}

fn node_ports(case: &Case<'_>) {
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 18080}]});
    case.shell("first", SLEEP_FOREVER, port.clone(), json!({}));
    case.wait_ready("first");
    refused(case, port, json!({}), "NodePorts");
}

fn sysctl_forbidden(case: &Case<'_>) {
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    refused(case, json!({}), spec, "SysctlForbidden");
}

fn app_armor(case: &Case<'_>) {
    let profile = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "nobody-loaded-this"}});
    refused(case, json!({"securityContext": profile}), json!({}), "AppArmor");
}

fn pod_os_not_supported(case: &Case<'_>) {
    refused(case, json!({}), json!({"os": {"name": "windows"}}), "PodOSNotSupported");
}

fn pod_feature_unsupported(case: &Case<'_>) {
    refused(case, json!({}), json!({"hostUsers": false}), "PodFeatureUnsupported");
}

fn status_container_id(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    let pod = case.wait_ready("p");
    assert_eq!(container_status(&pod)["containerID"], format!("docker://{}", case.ids("p", "main")[0]));
}

fn status_image_and_image_id(case: &Case<'_>) {
    // A pulled image has a digest of its registry; a loaded one only its own id.
    case.shell("pulled", SLEEP_FOREVER, json!({"image": "busybox:latest"}), json!({}));
    case.shell("loaded", SLEEP_FOREVER, json!({}), json!({}));
    let pulled = case.wait_ready("pulled");
    assert_eq!(container_status(&pulled)["image"], "busybox:latest");
    let id = text(&container_status(&pulled)["imageID"]).to_owned();
    assert!(id.contains("busybox@sha256:"), "{id}");
    let loaded = case.wait_ready("loaded");
    assert!(text(&container_status(&loaded)["imageID"]).contains("sha256:"), "{}", container_status(&loaded));
}

fn status_ready_and_started(case: &Case<'_>) {
    let probes = json!({"startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1,
        "failureThreshold": 100}, "readinessProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}});
    case.shell("p", SLEEP_FOREVER, probes, json!({}));
    let is = |p: &Value, started: bool, ready: bool| {
        container_status(p)["state"]["running"].is_object()
            && container_status(p)["started"] == started
            && container_status(p)["ready"] == ready
    };
    case.wait("p", "has not started", |p| is(p, false, false));
    case.shared.touch("begun");
    case.wait("p", "has started", |p| is(p, true, false));
    case.shared.touch("ready");
    case.wait("p", "is ready", |p| is(p, true, true));
}

fn status_restart_count_and_last_state(case: &Case<'_>) {
    case.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 5", json!({}), json!({}));
    let pod = case
        .wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    let last = &container_status(&pod)["lastState"]["terminated"];
    is(last, "Error", 5);
    assert!(
        text(&last["containerID"]).starts_with("docker://")
            && last["containerID"] != container_status(&pod)["containerID"]
    );
    assert!(last["startedAt"].is_string() && last["finishedAt"].is_string());
}

fn status_allocated_resources_and_resources(case: &Case<'_>) {
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}});
    case.shell("p", SLEEP_FOREVER, json!({"resources": resources}), json!({}));
    let pod = case.wait_ready("p");
    assert_eq!(
        (&container_status(&pod)["allocatedResources"], &container_status(&pod)["resources"]),
        (&resources["requests"], &resources)
    );
}

fn status_volume_mounts(case: &Case<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/e", "readOnly": true}]});
    case.shell("p", SLEEP_FOREVER, container, json!({"volumes": [{"name": "e", "emptyDir": {}}]}));
    let pod = case.wait_ready("p");
    let mounts = container_status(&pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
    let own = mounts.iter().find(|m| m["name"] == "e");
    let wanted = json!({"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": "Disabled"});
    assert_eq!(own, Some(&wanted));
}

fn statuses_sorted_by_name_and_init_in_spec_order(case: &Case<'_>) {
    let one = |name: &str| json!({"name": name, "command": shell("exit 0")});
    case.pod(
        "p",
        json!({"restartPolicy": "Never", "initContainers": [one("z"), one("a")], "containers": [one("y"), one("b")]}),
    );
    let pod = case.wait_phase("p", "Succeeded");
    let names = |list: &str| -> Vec<String> {
        let all = pod["status"][list].as_array();
        all.into_iter().flatten().map(|c| text(&c["name"]).to_owned()).collect()
    };
    assert_eq!(
        (names("initContainerStatuses"), names("containerStatuses")),
        (vec!["z".to_owned(), "a".to_owned()], vec!["b".to_owned(), "y".to_owned()])
    );
}

fn status_times_are_whole_seconds(case: &Case<'_>) {
    let ended = ended(case, "exit 0");
    for time in ["startedAt", "finishedAt"] {
        // 2006-01-02T15:04:05Z
        assert_eq!(text(&ended[time]).len(), 20, "{ended}");
    }
}
