//! What holds a pod's namespaces, how its containers are named and labelled, and which dead ones stay.

use serde_json::{Value, json};
use windlass_tests::{
    PATIENCE, eventually,
    sharing::{main_of, shell},
};

use crate::row::{Row, STAY, text};

crate::rows![
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
    sandbox_user_matters_to_nobody,
    foreign_containers_are_left_alone,
    dead_containers_newest_is_kept,
    dead_containers_of_a_deleted_pod_go,
    image_of_the_sandbox,
];

fn pod(row: &Row<'_>) -> (Value, Value, Value) {
    let metadata = json!({"labels": {"app": "web"}, "annotations": {"example.com/note": "n"}});
    let container = json!({"name": "main", "command": shell(STAY), "ports": [{"name": "web", "containerPort": 80}],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}}});
    row.pod_with("p", metadata, json!({"terminationGracePeriodSeconds": 7, "containers": [container]}));
    let pod = row.ready("p");
    (pod, row.inspect("p", "POD"), row.inspect("p", "main"))
}

fn full(row: &Row<'_>, pod: &Value, container: &str, attempt: u32) -> String {
    format!("/k8s_{container}_p_{}_{}_{attempt}", row.namespace, text(&pod["metadata"]["uid"]))
}

fn sandbox_name(row: &Row<'_>) {
    let (pod, sandbox, _) = pod(row);
    assert_eq!(sandbox["Name"], full(row, &pod, "POD", 0));
}

fn container_name(row: &Row<'_>) {
    let (pod, _, container) = pod(row);
    assert_eq!(container["Name"], full(row, &pod, "main", 0));
}

fn container_name_counts_restarts(row: &Row<'_>) {
    let (_, _, container) = pod(row);
    let _ = row.world.docker(&["kill", text(&container["Id"])]);
    let pod = row.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    let again = row.inspect("p", "main");
    assert_eq!(again["Name"], full(row, &pod, "main", 1));
    assert_eq!(again["Config"]["Labels"]["annotation.io.kubernetes.container.restartCount"], "1");
}

fn labels_of_both(row: &Row<'_>) {
    let (pod, sandbox, container) = pod(row);
    for (object, kind, name) in [(&sandbox, "podsandbox", "POD"), (&container, "container", "main")] {
        let labels = &object["Config"]["Labels"];
        for (key, value) in [
            ("io.kubernetes.docker.type", kind),
            ("io.kubernetes.container.name", name),
            ("io.kubernetes.pod.name", "p"),
            ("io.kubernetes.pod.namespace", row.namespace.as_str()),
            ("io.kubernetes.pod.uid", text(&pod["metadata"]["uid"])),
        ] {
            assert_eq!(labels[key], value, "{key}");
        }
    }
}

fn labels_of_a_container(row: &Row<'_>) {
    let (pod, sandbox, container) = pod(row);
    let labels = &container["Config"]["Labels"];
    let log = row.world.dir().join("log/pods");
    let uid = text(&pod["metadata"]["uid"]);
    let path = log.join(format!("{}_p_{uid}/main/0.log", row.namespace));
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

fn labels_of_a_sandbox(row: &Row<'_>) {
    let (_, sandbox, _) = pod(row);
    let labels = &sandbox["Config"]["Labels"];
    assert_eq!((&labels["app"], &labels["annotation.example.com/note"]), (&json!("web"), &json!("n")), "{labels}");
}

fn label_container_hash(row: &Row<'_>) {
    let (_, _, container) = pod(row);
    let hash = text(&container["Config"]["Labels"]["annotation.io.kubernetes.container.hash"]);
    assert!((1..=8).contains(&hash.len()) && u32::from_str_radix(hash, 16).is_ok(), "{hash}");
}

fn label_of_ports_and_pre_stop(row: &Row<'_>) {
    let (_, _, container) = pod(row);
    let labels = &container["Config"]["Labels"];
    let json = |key: &str| serde_json::from_str::<Value>(text(&labels[key])).unwrap_or_default();
    assert_eq!(json("annotation.io.kubernetes.container.ports")[0]["containerPort"], 80, "{labels}");
    assert_eq!(
        json("annotation.io.kubernetes.container.preStopHandler")["exec"]["command"],
        json!(["true"]),
        "{labels}"
    );
}

fn containers_join_the_sandbox(row: &Row<'_>) {
    let (_, sandbox, container) = pod(row);
    let joined = format!("container:{}", text(&sandbox["Id"]));
    let host = &container["HostConfig"];
    assert_eq!((&host["NetworkMode"], &host["IpcMode"]), (&json!(joined), &json!(joined)));
    assert_eq!(host["CgroupParent"], sandbox["HostConfig"]["CgroupParent"]);
}

fn containers_share_ipc(row: &Row<'_>) {
    let line = "echo seen > /dev/shm/word; exec sleep 100000";
    let look = "until [ -s /dev/shm/word ]; do sleep 0.05; done; cp /dev/shm/word /shared/word; exec sleep 100000";
    row.pod(
        "p",
        json!({"containers": [
        {"name": "a", "command": shell(line)}, {"name": "b", "command": shell(look)}]}),
    );
    assert_eq!(row.printed("word"), ["seen"]);
}

fn sandbox_settings(row: &Row<'_>) {
    let (_, sandbox, _) = pod(row);
    let host = &sandbox["HostConfig"];
    assert_eq!((&host["IpcMode"], &host["CpuShares"]), (&json!("shareable"), &json!(2)));
    assert_eq!((&host["Privileged"], &host["SecurityOpt"]), (&json!(false), &json!(["no-new-privileges"])));
    assert_eq!(sandbox["Config"]["Hostname"], "p");
}

fn sandbox_user_matters_to_nobody(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({"securityContext": {"runAsUser": 1234, "runAsGroup": 1234}}));
    row.ready("p");
    assert_eq!(row.inspect("p", "POD")["State"]["Running"], true);
}

fn foreign_containers_are_left_alone(row: &Row<'_>) {
    let id = row.world.docker(&["run", "-d", "--network", "none", "windlass/busybox:1", "sleep", "100000"]);
    let (pod, ..) = pod(row);
    let _ = row.kubectl(&["delete", "pod", "p"]);
    assert_eq!(row.world.docker(&["inspect", "-f", "{{.State.Running}}", id.trim()]).trim(), "true");
    let _ = row.world.docker(&["rm", "-f", id.trim()]);
    assert_eq!(pod["status"]["phase"], "Running");
}

fn dead_containers_newest_is_kept(row: &Row<'_>) {
    let line = "n=$(cat /shared/runs 2>/dev/null || echo 0); echo $((n+1)) > /shared/runs; [ $n -ge 2 ] && exec sleep 100000; \
                while [ ! -e /shared/go$n ]; do sleep 0.05; done; exit 1";
    row.shell("p", line, json!({}), json!({}));
    row.shared.put("go0");
    row.wait("p", "was restarted", |p| main_of(p)["restartCount"] == 1);
    row.shared.put("go1");
    row.wait("p", "was restarted again", |p| main_of(p)["restartCount"] == 2 && main_of(p)["ready"] == true);
    eventually(PATIENCE, "one dead instance is left beside the living one", || {
        let ids = row.ids("p", "main");
        anyhow::ensure!(ids.len() == 2, "{ids:?}");
        Ok(())
    });
    assert!(text(&row.inspect("p", "main")["Name"]).ends_with("_2"));
}

fn dead_containers_of_a_deleted_pod_go(row: &Row<'_>) {
    row.shell("p", "exit 0", json!({}), json!({"restartPolicy": "Never"}));
    row.phase("p", "Succeeded");
    assert_eq!(row.ids("p", "main").len(), 1);
    // The API forgets a pod that is over at once; what is left of it goes after that.
    let _ = row.kubectl(&["delete", "pod", "p"]);
    row.removed("p", &["main", "POD"]);
}

fn image_of_the_sandbox(row: &Row<'_>) {
    // It came without any registry.
    let (_, sandbox, _) = pod(row);
    assert!(text(&sandbox["Image"]).starts_with("sha256:"));
    assert!(sandbox["Path"].as_str().is_some_and(|p| p.contains("pause")), "{}", sandbox["Path"]);
}
