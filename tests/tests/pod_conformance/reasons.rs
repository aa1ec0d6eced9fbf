//! Why a container waits, how it ended, why a pod failed; and what else a container's status tells.

use serde_json::{Value, json};
use windlass_tests::shared_dir::{condition, main_of, shell};

use crate::case::{Case, STAY, text};

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
    case.shell("p", STAY, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), spec);
    case.says("p", "FailedMount");
    assert_eq!(case.waiting("p", "ContainerCreating")["message"], Value::Null);
}

fn pod_initializing(case: &Case<'_>) {
    let init = json!([{"name": "init", "command": shell(STAY)}]);
    case.shell("p", STAY, json!({}), json!({"initContainers": init}));
    case.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    case.waiting("p", "PodInitializing");
}

fn crash_loop_back_off_reason(case: &Case<'_>) {
    case.shell("p", "exit 1", json!({}), json!({}));
    let waiting = case.waiting("p", "CrashLoopBackOff");
    let uid = case.kubectl(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"]);
    let message = format!("back-off 10s restarting failed container=main pod=p_{}({uid})", case.namespace);
    assert_eq!(waiting["message"], message);
    case.says("p", "BackOff Back-off restarting failed container main in pod p_");
}

fn image(case: &Case<'_>, image: &str, policy: &str) {
    case.shell("p", STAY, json!({"image": image, "imagePullPolicy": policy}), json!({}));
}

fn err_image_pull(case: &Case<'_>) {
    image(case, "127.0.0.1:5000/nowhere:1", "IfNotPresent");
    let waiting = case.waiting("p", "ErrImagePull");
    assert!(text(&waiting["message"]).contains("nowhere"), "{waiting}");
    case.says("p", "Failed Failed to pull image \"127.0.0.1:5000/nowhere:1\": ");
    case.says("p", "Failed Error: ErrImagePull");
}

fn image_pull_back_off(case: &Case<'_>) {
    image(case, "127.0.0.1:5000/nowhere:1", "Always");
    let waiting = case.waiting("p", "ImagePullBackOff");
    let words = "Back-off pulling image \"127.0.0.1:5000/nowhere:1\": ErrImagePull: ";
    assert!(text(&waiting["message"]).starts_with(words), "{waiting}");
    case.says("p", "BackOff Back-off pulling image \"127.0.0.1:5000/nowhere:1\"");
}

fn err_image_never_pull(case: &Case<'_>) {
    image(case, "windlass/none:1", "Never");
    let message = "Container image \"windlass/none:1\" is not present with pull policy of Never";
    assert_eq!(case.waiting("p", "ErrImageNeverPull")["message"], message);
    case.says("p", &format!("ErrImageNeverPull {message}"));
}

fn invalid_image_name(case: &Case<'_>) {
    image(case, "Windlass/Upper:1", "Always");
    let waiting = case.waiting("p", "InvalidImageName");
    assert!(text(&waiting["message"]).contains("Windlass/Upper:1"), "{waiting}");
    case.says("p", "InspectFailed");
}

fn registry_unavailable(case: &Case<'_>) {
    let _ = case.get("");
    image(case, "127.0.0.1:8104/any:1", "Always");
    case.waiting("p", "RegistryUnavailable");
}

fn create_container_config_error(case: &Case<'_>) {
    let env = json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x"}}}]});
    case.shell("p", STAY, env, json!({}));
    case.waiting("p", "CreateContainerConfigError");
    case.says("p", "Failed Error: configmap \"none\" not found");
}

fn create_container_error(case: &Case<'_>) {
    // Docker wants an absolute one, and says so when the container is to be made.
    case.shell("p", STAY, json!({"workingDir": "not/absolute"}), json!({}));
    let waiting = case.waiting("p", "CreateContainerError");
    assert!(text(&waiting["message"]).contains("working directory"), "{waiting}");
}

fn run_container_error(case: &Case<'_>) {
    case.shell("p", "", json!({"command": ["/no/such/program"]}), json!({}));
    let waiting = case.waiting("p", "RunContainerError");
    assert!(text(&waiting["message"]).contains("/no/such/program"), "{waiting}");
}

fn post_start_hook_error(case: &Case<'_>) {
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo why; exit 4"]}}}});
    case.shell("p", STAY, hook, json!({}));
    case.says("p", "FailedPostStartHook");
    case.waiting("p", "PostStartHookError");
}

fn failed_create_pod_sandbox(case: &Case<'_>) {
    let spec = json!({"hostname": "h".repeat(60), "subdomain": "web", "setHostnameAsFQDN": true});
    case.shell("p", STAY, json!({}), spec);
    case.says("p", "FailedCreatePodSandBox");
    let pod = case.wait("p", "waits", |p| p["status"]["phase"] == "Pending");
    assert_eq!(condition(&pod, "PodReadyToStartContainers")["status"], "False");
}

/// How a container ended that runs a line once.
fn ended(case: &Case<'_>, line: &str) -> Value {
    case.shell("p", line, json!({}), json!({"restartPolicy": "Never"}));
    let pod = case.wait("p", "has ended", |p| main_of(p)["state"]["terminated"].is_object());
    main_of(&pod)["state"]["terminated"].clone()
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
    case.shell("p", STAY, json!({}), json!({"restartPolicy": "Never"}));
    case.ready("p");
    let _ = case.testbed.docker(&["kill", &case.ids("p", "main")[0]]);
    is(&main_of(&case.phase("p", "Failed"))["state"]["terminated"], "Error", 137);
}

fn terminated_error_by_sigterm(case: &Case<'_>) {
    // A shell that is not the first process is ended by the signal; a dollar is written twice.
    is(&ended(case, "sh -c 'kill -TERM $$$$'; exit $?"), "Error", 143);
}

fn terminated_start_error(case: &Case<'_>) {
    case.shell("p", "", json!({"command": ["/no/such/program"]}), json!({"restartPolicy": "Never"}));
    let ended = main_of(&case.phase("p", "Failed"))["state"]["terminated"].clone();
    is(&ended, "StartError", 128);
    assert!(text(&ended["message"]).contains("/no/such/program"), "{ended}");
}

fn container_status_unknown(case: &Case<'_>) {
    case.shell("p", STAY, json!({}), json!({}));
    case.ready("p");
    let _ = case.testbed.docker(&["rm", "-f", &case.ids("p", "main")[0]]);
    let pod = case.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    assert_eq!(main_of(&pod)["lastState"]["terminated"]["exitCode"], 137, "{pod}");
}

fn deadline_exceeded(case: &Case<'_>) {
    case.shell("p", STAY, json!({}), json!({"activeDeadlineSeconds": 1}));
    let pod = case.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    assert_eq!(pod["status"]["message"], "Pod was active on the node longer than the specified deadline");
    case.says("p", "DeadlineExceeded");
}

/// A pod that somebody put on this node without asking the scheduler.
#[track_caller]
fn refused(case: &Case<'_>, container: Value, mut spec: Value, reason: &str) {
    spec["nodeName"] = json!("node");
    case.shell("p", "touch /shared/ran", container, spec);
    let pod = case.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], reason, "{}", pod["status"]);
    assert!(text(&pod["status"]["message"]).starts_with("Pod was rejected: "), "{}", pod["status"]);
    case.says("p", reason);
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
    case.shell("first", STAY, port.clone(), json!({}));
    case.ready("first");
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
    case.shell("p", STAY, json!({}), json!({}));
    let pod = case.ready("p");
    assert_eq!(main_of(&pod)["containerID"], format!("docker://{}", case.ids("p", "main")[0]));
}

fn status_image_and_image_id(case: &Case<'_>) {
    // One that was pulled has a digest of its registry; one that was only loaded has its own.
    case.shell("pulled", STAY, json!({"image": "busybox:latest"}), json!({}));
    case.shell("loaded", STAY, json!({}), json!({}));
    let pulled = case.ready("pulled");
    assert_eq!(main_of(&pulled)["image"], "busybox:latest");
    let id = text(&main_of(&pulled)["imageID"]).to_owned();
    assert!(id.contains("busybox@sha256:"), "{id}");
    let loaded = case.ready("loaded");
    assert!(text(&main_of(&loaded)["imageID"]).contains("sha256:"), "{}", main_of(&loaded));
}

fn status_ready_and_started(case: &Case<'_>) {
    let probes = json!({"startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1,
        "failureThreshold": 100}, "readinessProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}});
    case.shell("p", STAY, probes, json!({}));
    let is = |p: &Value, started: bool, ready: bool| {
        main_of(p)["state"]["running"].is_object() && main_of(p)["started"] == started && main_of(p)["ready"] == ready
    };
    case.wait("p", "has not started", |p| is(p, false, false));
    case.shared.put("begun");
    case.wait("p", "has started", |p| is(p, true, false));
    case.shared.put("ready");
    case.wait("p", "is ready", |p| is(p, true, true));
}

fn status_restart_count_and_last_state(case: &Case<'_>) {
    case.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 5", json!({}), json!({}));
    let pod = case.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    let last = &main_of(&pod)["lastState"]["terminated"];
    is(last, "Error", 5);
    assert!(text(&last["containerID"]).starts_with("docker://") && last["containerID"] != main_of(&pod)["containerID"]);
    assert!(last["startedAt"].is_string() && last["finishedAt"].is_string());
}

fn status_allocated_resources_and_resources(case: &Case<'_>) {
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}});
    case.shell("p", STAY, json!({"resources": resources}), json!({}));
    let pod = case.ready("p");
    assert_eq!(
        (&main_of(&pod)["allocatedResources"], &main_of(&pod)["resources"]),
        (&resources["requests"], &resources)
    );
}

fn status_volume_mounts(case: &Case<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/e", "readOnly": true}]});
    case.shell("p", STAY, container, json!({"volumes": [{"name": "e", "emptyDir": {}}]}));
    let pod = case.ready("p");
    let mounts = main_of(&pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
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
    let pod = case.phase("p", "Succeeded");
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
