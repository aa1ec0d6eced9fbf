//! Why a container waits, how it ended, why a pod failed; and what else a container's status tells.

use serde_json::{Value, json};
use windlass_tests::sharing::{condition, main_of, shell};

use crate::row::{Row, STAY, text};

crate::rows![
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

fn container_creating(row: &Row<'_>) {
    let spec = json!({"volumes": [{"name": "v", "configMap": {"name": "none"}}]});
    row.shell("p", STAY, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), spec);
    row.says("p", "FailedMount");
    assert_eq!(row.waiting("p", "ContainerCreating")["message"], Value::Null);
}

fn pod_initializing(row: &Row<'_>) {
    let init = json!([{"name": "init", "command": shell(STAY)}]);
    row.shell("p", STAY, json!({}), json!({"initContainers": init}));
    row.wait("p", "runs init", |p| p["status"]["initContainerStatuses"][0]["state"]["running"].is_object());
    row.waiting("p", "PodInitializing");
}

fn crash_loop_back_off_reason(row: &Row<'_>) {
    row.shell("p", "exit 1", json!({}), json!({}));
    let waiting = row.waiting("p", "CrashLoopBackOff");
    let uid = row.kubectl(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"]);
    let message = format!("back-off 10s restarting failed container=main pod=p_{}({uid})", row.namespace);
    assert_eq!(waiting["message"], message);
    row.says("p", "BackOff Back-off restarting failed container main in pod p_");
}

fn image(row: &Row<'_>, image: &str, policy: &str) {
    row.shell("p", STAY, json!({"image": image, "imagePullPolicy": policy}), json!({}));
}

fn err_image_pull(row: &Row<'_>) {
    image(row, "127.0.0.1:5000/nowhere:1", "IfNotPresent");
    let waiting = row.waiting("p", "ErrImagePull");
    assert!(text(&waiting["message"]).contains("nowhere"), "{waiting}");
    row.says("p", "Failed Failed to pull image \"127.0.0.1:5000/nowhere:1\": ");
    row.says("p", "Failed Error: ErrImagePull");
}

fn image_pull_back_off(row: &Row<'_>) {
    image(row, "127.0.0.1:5000/nowhere:1", "Always");
    let waiting = row.waiting("p", "ImagePullBackOff");
    let words = "Back-off pulling image \"127.0.0.1:5000/nowhere:1\": ErrImagePull: ";
    assert!(text(&waiting["message"]).starts_with(words), "{waiting}");
    row.says("p", "BackOff Back-off pulling image \"127.0.0.1:5000/nowhere:1\"");
}

fn err_image_never_pull(row: &Row<'_>) {
    image(row, "windlass/none:1", "Never");
    let message = "Container image \"windlass/none:1\" is not present with pull policy of Never";
    assert_eq!(row.waiting("p", "ErrImageNeverPull")["message"], message);
    row.says("p", &format!("ErrImageNeverPull {message}"));
}

fn invalid_image_name(row: &Row<'_>) {
    image(row, "Windlass/Upper:1", "Always");
    let waiting = row.waiting("p", "InvalidImageName");
    assert!(text(&waiting["message"]).contains("Windlass/Upper:1"), "{waiting}");
    row.says("p", "InspectFailed");
}

fn registry_unavailable(row: &Row<'_>) {
    let _ = row.get("");
    image(row, "127.0.0.1:8104/any:1", "Always");
    row.waiting("p", "RegistryUnavailable");
}

fn create_container_config_error(row: &Row<'_>) {
    let env = json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x"}}}]});
    row.shell("p", STAY, env, json!({}));
    row.waiting("p", "CreateContainerConfigError");
    row.says("p", "Failed Error: configmap \"none\" not found");
}

fn create_container_error(row: &Row<'_>) {
    // Docker wants an absolute one, and says so when the container is to be made.
    row.shell("p", STAY, json!({"workingDir": "not/absolute"}), json!({}));
    let waiting = row.waiting("p", "CreateContainerError");
    assert!(text(&waiting["message"]).contains("working directory"), "{waiting}");
}

fn run_container_error(row: &Row<'_>) {
    row.shell("p", "", json!({"command": ["/no/such/program"]}), json!({}));
    let waiting = row.waiting("p", "RunContainerError");
    assert!(text(&waiting["message"]).contains("/no/such/program"), "{waiting}");
}

fn post_start_hook_error(row: &Row<'_>) {
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo why; exit 4"]}}}});
    row.shell("p", STAY, hook, json!({}));
    row.says("p", "FailedPostStartHook");
    row.waiting("p", "PostStartHookError");
}

fn failed_create_pod_sandbox(row: &Row<'_>) {
    let spec = json!({"hostname": "h".repeat(60), "subdomain": "web", "setHostnameAsFQDN": true});
    row.shell("p", STAY, json!({}), spec);
    row.says("p", "FailedCreatePodSandBox");
    let pod = row.wait("p", "waits", |p| p["status"]["phase"] == "Pending");
    assert_eq!(condition(&pod, "PodReadyToStartContainers")["status"], "False");
}

/// How a container ended that runs a line once.
fn ended(row: &Row<'_>, line: &str) -> Value {
    row.shell("p", line, json!({}), json!({"restartPolicy": "Never"}));
    let pod = row.wait("p", "has ended", |p| main_of(p)["state"]["terminated"].is_object());
    main_of(&pod)["state"]["terminated"].clone()
}

#[track_caller]
fn is(ended: &Value, reason: &str, code: i64) {
    assert_eq!((text(&ended["reason"]), ended["exitCode"].as_i64()), (reason, Some(code)), "{ended}");
}

fn terminated_completed(row: &Row<'_>) {
    is(&ended(row, "exit 0"), "Completed", 0);
}

fn terminated_error(row: &Row<'_>) {
    is(&ended(row, "exit 3"), "Error", 3);
}

fn terminated_error_by_sigkill(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({"restartPolicy": "Never"}));
    row.ready("p");
    let _ = row.world.docker(&["kill", &row.ids("p", "main")[0]]);
    is(&main_of(&row.phase("p", "Failed"))["state"]["terminated"], "Error", 137);
}

fn terminated_error_by_sigterm(row: &Row<'_>) {
    // A shell that is not the first process is ended by the signal; a dollar is written twice.
    is(&ended(row, "sh -c 'kill -TERM $$$$'; exit $?"), "Error", 143);
}

fn terminated_start_error(row: &Row<'_>) {
    row.shell("p", "", json!({"command": ["/no/such/program"]}), json!({"restartPolicy": "Never"}));
    let ended = main_of(&row.phase("p", "Failed"))["state"]["terminated"].clone();
    is(&ended, "StartError", 128);
    assert!(text(&ended["message"]).contains("/no/such/program"), "{ended}");
}

fn container_status_unknown(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({}));
    row.ready("p");
    let _ = row.world.docker(&["rm", "-f", &row.ids("p", "main")[0]]);
    let pod = row.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    assert_eq!(main_of(&pod)["lastState"]["terminated"]["exitCode"], 137, "{pod}");
}

fn deadline_exceeded(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({"activeDeadlineSeconds": 1}));
    let pod = row.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    assert_eq!(pod["status"]["message"], "Pod was active on the node longer than the specified deadline");
    row.says("p", "DeadlineExceeded");
}

/// A pod that somebody put on this node without asking the scheduler.
#[track_caller]
fn refused(row: &Row<'_>, container: Value, mut spec: Value, reason: &str) {
    spec["nodeName"] = json!("node");
    row.shell("p", "touch /shared/ran", container, spec);
    let pod = row.phase("p", "Failed");
    assert_eq!(pod["status"]["reason"], reason, "{}", pod["status"]);
    assert!(text(&pod["status"]["message"]).starts_with("Pod was rejected: "), "{}", pod["status"]);
    row.says("p", reason);
    assert!(row.ids("p", "POD").is_empty() && !row.shared.0.join("ran").exists());
}

fn asks(resource: &str, amount: &str) -> Value {
    json!({"resources": {"requests": {resource: amount}, "limits": {resource: amount}}})
}

fn out_of_cpu(row: &Row<'_>) {
    refused(row, asks("cpu", "4000"), json!({}), "OutOfcpu");
}

fn out_of_memory(row: &Row<'_>) {
    refused(row, asks("memory", "100Ti"), json!({}), "OutOfmemory");
}

fn node_ports(row: &Row<'_>) {
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 18080}]});
    row.shell("first", STAY, port.clone(), json!({}));
    row.ready("first");
    refused(row, port, json!({}), "NodePorts");
}

fn sysctl_forbidden(row: &Row<'_>) {
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    refused(row, json!({}), spec, "SysctlForbidden");
}

fn app_armor(row: &Row<'_>) {
    let profile = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "nobody-loaded-this"}});
    refused(row, json!({"securityContext": profile}), json!({}), "AppArmor");
}

fn pod_os_not_supported(row: &Row<'_>) {
    refused(row, json!({}), json!({"os": {"name": "windows"}}), "PodOSNotSupported");
}

fn pod_feature_unsupported(row: &Row<'_>) {
    refused(row, json!({}), json!({"hostUsers": false}), "PodFeatureUnsupported");
}

fn status_container_id(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({}));
    let pod = row.ready("p");
    assert_eq!(main_of(&pod)["containerID"], format!("docker://{}", row.ids("p", "main")[0]));
}

fn status_image_and_image_id(row: &Row<'_>) {
    // One that was pulled has a digest of its registry; one that was only loaded has its own.
    row.shell("pulled", STAY, json!({"image": "busybox:latest"}), json!({}));
    row.shell("loaded", STAY, json!({}), json!({}));
    let pulled = row.ready("pulled");
    assert_eq!(main_of(&pulled)["image"], "busybox:latest");
    let id = text(&main_of(&pulled)["imageID"]).to_owned();
    assert!(id.contains("busybox@sha256:"), "{id}");
    let loaded = row.ready("loaded");
    assert!(text(&main_of(&loaded)["imageID"]).contains("sha256:"), "{}", main_of(&loaded));
}

fn status_ready_and_started(row: &Row<'_>) {
    let probes = json!({"startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1,
        "failureThreshold": 100}, "readinessProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}});
    row.shell("p", STAY, probes, json!({}));
    let is = |p: &Value, started: bool, ready: bool| {
        main_of(p)["state"]["running"].is_object() && main_of(p)["started"] == started && main_of(p)["ready"] == ready
    };
    row.wait("p", "has not started", |p| is(p, false, false));
    row.shared.put("begun");
    row.wait("p", "has started", |p| is(p, true, false));
    row.shared.put("ready");
    row.wait("p", "is ready", |p| is(p, true, true));
}

fn status_restart_count_and_last_state(row: &Row<'_>) {
    row.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 5", json!({}), json!({}));
    let pod = row.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    let last = &main_of(&pod)["lastState"]["terminated"];
    is(last, "Error", 5);
    assert!(text(&last["containerID"]).starts_with("docker://") && last["containerID"] != main_of(&pod)["containerID"]);
    assert!(last["startedAt"].is_string() && last["finishedAt"].is_string());
}

fn status_allocated_resources_and_resources(row: &Row<'_>) {
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}});
    row.shell("p", STAY, json!({"resources": resources}), json!({}));
    let pod = row.ready("p");
    assert_eq!(
        (&main_of(&pod)["allocatedResources"], &main_of(&pod)["resources"]),
        (&resources["requests"], &resources)
    );
}

fn status_volume_mounts(row: &Row<'_>) {
    let container = json!({"volumeMounts": [{"name": "e", "mountPath": "/e", "readOnly": true}]});
    row.shell("p", STAY, container, json!({"volumes": [{"name": "e", "emptyDir": {}}]}));
    let pod = row.ready("p");
    let mounts = main_of(&pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
    let own = mounts.iter().find(|m| m["name"] == "e");
    let wanted = json!({"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": "Disabled"});
    assert_eq!(own, Some(&wanted));
}

fn statuses_sorted_by_name_and_init_in_spec_order(row: &Row<'_>) {
    let one = |name: &str| json!({"name": name, "command": shell("exit 0")});
    row.pod(
        "p",
        json!({"restartPolicy": "Never", "initContainers": [one("z"), one("a")], "containers": [one("y"), one("b")]}),
    );
    let pod = row.phase("p", "Succeeded");
    let names = |list: &str| -> Vec<String> {
        let all = pod["status"][list].as_array();
        all.into_iter().flatten().map(|c| text(&c["name"]).to_owned()).collect()
    };
    assert_eq!(
        (names("initContainerStatuses"), names("containerStatuses")),
        (vec!["z".to_owned(), "a".to_owned()], vec!["b".to_owned(), "y".to_owned()])
    );
}

fn status_times_are_whole_seconds(row: &Row<'_>) {
    let ended = ended(row, "exit 0");
    for time in ["startedAt", "finishedAt"] {
        // 2006-01-02T15:04:05Z
        assert_eq!(text(&ended[time]).len(), 20, "{ended}");
    }
}
