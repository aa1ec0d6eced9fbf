//! The pod's sandbox container, names and labels of containers, and which dead containers are kept.

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{container_status, shell},
};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    sandbox_name,
    container_name,
    container_name_counts_restarts,
    labels_of_both,
    labels_of_a_container,
    labels_of_a_sandbox,
    label_container_hash,
    label_of_ports_and_pre_stop,
    containers_join_the_sandbox,
    containers_share_ipc,
    sandbox_settings,
    sandbox_user_is_irrelevant,
    unmanaged_containers_are_untouched,
    exited_containers_newest_is_retained,
    exited_containers_of_a_deleted_pod_are_removed,
    image_of_the_sandbox,
];

fn pod(case: &Case<'_>) -> (Value, Value, Value) {
    let metadata = json!({"labels": {"app": "web"}, "annotations": {"example.com/note": "n"}});
    let container = json!({"name": "main", "command": shell(SLEEP_FOREVER), "ports": [{"name": "web", "containerPort": 80}],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}}});
    case.pod_with("p", metadata, json!({"terminationGracePeriodSeconds": 7, "containers": [container]}));
    let pod = case.wait_ready("p");
    (pod, case.inspect("p", "POD"), case.inspect("p", "main"))
}

fn full(case: &Case<'_>, pod: &Value, container: &str, attempt: u32) -> String {
    format!("/k8s_{container}_p_{}_{}_{attempt}", case.namespace, text(&pod["metadata"]["uid"]))
}

fn sandbox_name(case: &Case<'_>) {
    let (pod, sandbox, _) = pod(case);
    assert_eq!(sandbox["Name"], full(case, &pod, "POD", 0));
}

fn container_name(case: &Case<'_>) {
    let (pod, _, container) = pod(case);
    assert_eq!(container["Name"], full(case, &pod, "main", 0));
}

fn container_name_counts_restarts(case: &Case<'_>) {
    let (_, _, container) = pod(case);
    let _ = case.testbed.docker(&["kill", text(&container["Id"])]);
    let pod = case
        .wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    let again = case.inspect("p", "main");
    assert_eq!(again["Name"], full(case, &pod, "main", 1));
    assert_eq!(again["Config"]["Labels"]["annotation.io.kubernetes.container.restartCount"], "1");
}

fn labels_of_both(case: &Case<'_>) {
    let (pod, sandbox, container) = pod(case);
    for (object, kind, name) in [(&sandbox, "podsandbox", "POD"), (&container, "container", "main")] {
        let labels = &object["Config"]["Labels"];
        for (key, value) in [
            ("io.kubernetes.docker.type", kind),
            ("io.kubernetes.container.name", name),
            ("io.kubernetes.pod.name", "p"),
            ("io.kubernetes.pod.namespace", case.namespace.as_str()),
            ("io.kubernetes.pod.uid", text(&pod["metadata"]["uid"])),
        ] {
            assert_eq!(labels[key], value, "{key}");
        }
    }
}

fn labels_of_a_container(case: &Case<'_>) {
    let (pod, sandbox, container) = pod(case);
    let labels = &container["Config"]["Labels"];
    let log = case.testbed.dir().join("log/pods");
    let uid = text(&pod["metadata"]["uid"]);
    let path = log.join(format!("{}_p_{uid}/main/0.log", case.namespace));
    for (key, value) in [
        ("io.kubernetes.sandbox.id", text(&sandbox["Id"])),
        ("io.kubernetes.container.logpath", &path.to_string_lossy()),
        ("annotation.io.kubernetes.container.restartCount", "0"),
        ("annotation.io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
        ("annotation.io.kubernetes.container.terminationMessagePolicy", "File"),
        ("annotation.io.kubernetes.pod.terminationGracePeriod", "7"),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
}

fn labels_of_a_sandbox(case: &Case<'_>) {
    let (_, sandbox, _) = pod(case);
    let labels = &sandbox["Config"]["Labels"];
    assert_eq!((&labels["app"], &labels["annotation.example.com/note"]), (&json!("web"), &json!("n")), "{labels}");
}

fn label_container_hash(case: &Case<'_>) {
    let (_, _, container) = pod(case);
    let hash = text(&container["Config"]["Labels"]["annotation.io.kubernetes.container.hash"]);
    assert!((1..=8).contains(&hash.len()) && u32::from_str_radix(hash, 16).is_ok(), "{hash}");
}

fn label_of_ports_and_pre_stop(case: &Case<'_>) {
    let (_, _, container) = pod(case);
    let labels = &container["Config"]["Labels"];
    let json = |key: &str| serde_json::from_str::<Value>(text(&labels[key])).unwrap_or_default();
    assert_eq!(json("annotation.io.kubernetes.container.ports")[0]["containerPort"], 80, "{labels}");
    assert_eq!(
        json("annotation.io.kubernetes.container.preStopHandler")["exec"]["command"],
        json!(["true"]),
        "{labels}"
    );
}

fn containers_join_the_sandbox(case: &Case<'_>) {
    let (_, sandbox, container) = pod(case);
    let joined = format!("container:{}", text(&sandbox["Id"]));
    let host = &container["HostConfig"];
    assert_eq!((&host["NetworkMode"], &host["IpcMode"]), (&json!(joined), &json!(joined)));
    assert_eq!(host["CgroupParent"], sandbox["HostConfig"]["CgroupParent"]);
}

fn containers_share_ipc(case: &Case<'_>) {
    let line = "echo seen > /dev/shm/word; exec sleep 100000";
    let look = "until [ -s /dev/shm/word ]; do sleep 0.05; done; cp /dev/shm/word /shared/word; exec sleep 100000";
    case.pod(
        "p",
        json!({"containers": [
        {"name": "a", "command": shell(line)}, {"name": "b", "command": shell(look)}]}),
    );
    assert_eq!(case.output("word"), ["seen"]);
}

fn sandbox_settings(case: &Case<'_>) {
    let (_, sandbox, _) = pod(case);
    let host = &sandbox["HostConfig"];
    assert_eq!((&host["IpcMode"], &host["CpuShares"]), (&json!("shareable"), &json!(2)));
    assert_eq!((&host["Privileged"], &host["SecurityOpt"]), (&json!(false), &json!(["no-new-privileges"])));
    assert_eq!(sandbox["Config"]["Hostname"], "p");
}

fn sandbox_user_is_irrelevant(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"securityContext": {"runAsUser": 1234, "runAsGroup": 1234}}));
    case.wait_ready("p");
    assert_eq!(case.inspect("p", "POD")["State"]["Running"], true);
}

fn unmanaged_containers_are_untouched(case: &Case<'_>) {
    let id = case.testbed.docker(&["run", "-d", "--network", "none", "windlass/busybox:1", "sleep", "100000"]);
    let (pod, ..) = pod(case);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.testbed.docker(&["inspect", "-f", "{{.State.Running}}", id.trim()]).trim(), "true");
    let _ = case.testbed.docker(&["rm", "-f", id.trim()]);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn exited_containers_newest_is_retained(case: &Case<'_>) {
    let line = "n=$(cat /shared/runs 2>/dev/null || echo 0); echo $((n+1)) > /shared/runs; [ $n -ge 2 ] && exec sleep 100000; \
                while [ ! -e /shared/go$n ]; do sleep 0.05; done; exit 1";
    case.shell("p", line, json!({}), json!({}));
    case.shared.touch("go0");
    case.wait("p", "was restarted", |p| container_status(p)["restartCount"] == 1);
    case.shared.touch("go1");
    case.wait("p", "was restarted again", |p| {
        container_status(p)["restartCount"] == 2 && container_status(p)["ready"] == true
    });
    eventually(DEFAULT_TIMEOUT, "one dead instance is left beside the living one", || {
        let ids = case.ids("p", "main");
        anyhow::ensure!(ids.len() == 2, "{ids:?}");
        Ok(())
    });
    assert!(text(&case.inspect("p", "main")["Name"]).ends_with("_2"));
}

fn exited_containers_of_a_deleted_pod_are_removed(case: &Case<'_>) {
    case.shell("p", "exit 0", json!({}), json!({"restartPolicy": "Never"}));
    case.wait_phase("p", "Succeeded");
    assert_eq!(case.ids("p", "main").len(), 1);
    // The API removes a finished pod at once; the rest of it is removed afterwards.
    let _ = case.kubectl(&["delete", "pod", "p"]);
    case.wait_removed("p", &["main", "POD"]);
}

fn image_of_the_sandbox(case: &Case<'_>) {
    // The image exists without any registry.
    let (_, sandbox, _) = pod(case);
    assert!(text(&sandbox["Image"]).starts_with("sha256:"));
    assert!(sandbox["Path"].as_str().is_some_and(|p| p.contains("pause")), "{}", sandbox["Path"]);
}
