//! Fields of a pod's spec, and of its containers, that have no table of their own.

use serde_json::{Value, json};
use windlass_tests::{
    PATIENCE, eventually,
    sharing::{condition, main_of, shell},
};

use crate::row::{NODE_IP, Row, STAY, text};

crate::rows![
    node_selector,
    node_affinity_required,
    node_name,
    service_account_name,
    automount_service_account_token_false,
    host_network,
    host_pid,
    host_ipc,
    own_namespaces,
    share_process_namespace,
    runtime_class,
    runtime_class_of_an_unknown_handler,
    overhead,
    os_name_linux,
    image_is_used_by_id,
    command_empty_is_the_entrypoint_of_the_image,
    args_empty_are_the_command_of_the_image,
    command_without_args_drops_those_of_the_image,
    args_without_command_follow_the_entrypoint,
    working_dir_is_made,
    working_dir_of_the_image,
    host_port,
    host_port_of_one_address,
    health_check_of_the_image_does_not_run,
    stdin,
    stdin_once,
    tty,
    engine_restarts_nothing,
    log_driver_and_path,
];

fn node_selector(row: &Row<'_>) {
    row.shell("here", STAY, json!({}), json!({"nodeSelector": {"kubernetes.io/hostname": "node"}}));
    row.shell("nowhere", STAY, json!({}), json!({"nodeSelector": {"colour": "none"}}));
    row.ready("here");
    row.says("nowhere", "FailedScheduling");
    assert!(row.ids("nowhere", "POD").is_empty());
}

fn node_affinity_required(row: &Row<'_>) {
    let affinity = |value: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": [value]}]}]}}}})
    };
    row.shell("here", STAY, json!({}), affinity("linux"));
    row.shell("nowhere", STAY, json!({}), affinity("plan9"));
    row.ready("here");
    row.says("nowhere", "FailedScheduling");
}

fn node_name(row: &Row<'_>) {
    // Nobody schedules it, and a pod of another node is none of ours.
    row.shell("here", STAY, json!({}), json!({"nodeName": "node"}));
    row.shell("elsewhere", STAY, json!({}), json!({"nodeName": "another"}));
    row.ready("here");
    assert!(row.ids("elsewhere", "POD").is_empty());
}

fn service_account_name(row: &Row<'_>) {
    let _ = row.kubectl(&["create", "serviceaccount", "own"]);
    let line = "cut -d. -f2 /var/run/secrets/kubernetes.io/serviceaccount/token | tr '_-' '/+' | \
                (cat; echo ===) | base64 -d 2>/dev/null";
    let told = row.run("p", line, json!({}), json!({"serviceAccountName": "own"})).concat();
    assert!(told.contains(&format!("system:serviceaccount:{}:own", row.namespace)), "{told}");
}

fn automount_service_account_token_false(row: &Row<'_>) {
    let line = "ls /var/run/secrets/kubernetes.io/serviceaccount";
    let told = row.run("p", line, json!({}), json!({"automountServiceAccountToken": false}));
    assert!(told.concat().contains("No such file"), "{told:?}");
}

/// The namespaces of a pod's container: network, processes, IPC and names.
fn namespaces(row: &Row<'_>, name: &str, spec: Value) -> Vec<String> {
    row.run(name, "for n in net pid ipc uts; do readlink /proc/self/ns/$n; done", json!({}), spec)
}

fn of_machine(kind: &str) -> String {
    let path = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("procfs is there");
    path.to_string_lossy().into_owned()
}

fn host_network(row: &Row<'_>) {
    let seen = namespaces(row, "p", json!({"hostNetwork": true}));
    assert_eq!(seen[0], row.world.sh("readlink /proc/self/ns/net").trim());
    assert_ne!(seen[1], of_machine("pid"));
    row.shell("stays", STAY, json!({"ports": [{"containerPort": 18999}]}), json!({"hostNetwork": true}));
    let pod = row.ready("stays");
    assert_eq!((text(&pod["status"]["podIP"]), text(&pod["status"]["hostIP"])), (NODE_IP, NODE_IP));
    assert_eq!(pod["spec"]["containers"][0]["ports"][0]["hostPort"], 18999);
}

fn host_pid(row: &Row<'_>) {
    let seen = namespaces(row, "p", json!({"hostPID": true}));
    assert_eq!(seen[1], of_machine("pid"));
}

fn host_ipc(row: &Row<'_>) {
    let seen = namespaces(row, "p", json!({"hostIPC": true}));
    assert_eq!(seen[2], of_machine("ipc"));
}

fn own_namespaces(row: &Row<'_>) {
    let seen = namespaces(row, "p", json!({}));
    assert_ne!(seen[0], row.world.sh("readlink /proc/self/ns/net").trim());
    for (at, kind) in [(1, "pid"), (2, "ipc"), (3, "uts")] {
        assert_ne!(seen[at], of_machine(kind));
    }
}

fn share_process_namespace(row: &Row<'_>) {
    let two = |name: &str, share: bool| {
        let line = format!("sleep 1; ps > /shared/.{name}; mv /shared/.{name} /shared/{name}; exec sleep 100000");
        row.pod(
            name,
            json!({"shareProcessNamespace": share, "containers": [
            {"name": "a", "command": shell("exec sleep 7654")}, {"name": "b", "command": shell(&line)}]}),
        );
        row.printed(name).join("\n")
    };
    let (shared, own) = (two("shared", true), two("own", false));
    assert!(shared.contains("sleep 7654") && shared.contains("/pause"), "{shared}");
    assert!(!own.contains("sleep 7654"), "{own}");
}

fn class(row: &Row<'_>, name: &str, handler: &str, rest: Value) {
    let mut class = rest;
    class["apiVersion"] = json!("node.k8s.io/v1");
    class["kind"] = json!("RuntimeClass");
    class["metadata"] = json!({"name": name});
    class["handler"] = json!(handler);
    row.apply(&[class]);
}

fn runtime_class(row: &Row<'_>) {
    class(row, "rows-runc", "runc", json!({}));
    row.shell("p", STAY, json!({}), json!({"runtimeClassName": "rows-runc"}));
    row.ready("p");
    for container in ["POD", "main"] {
        assert_eq!(row.inspect("p", container)["HostConfig"]["Runtime"], "runc");
    }
}

fn runtime_class_of_an_unknown_handler(row: &Row<'_>) {
    class(row, "rows-none", "nobody-has-this", json!({}));
    row.shell("p", STAY, json!({}), json!({"runtimeClassName": "rows-none"}));
    row.says("p", "FailedCreatePodSandBox");
    assert_eq!(row.kubectl(&["get", "pod", "p", "-o", "jsonpath={.status.phase}"]), "Pending");
}

fn overhead(row: &Row<'_>) {
    let extra = json!({"cpu": "50m", "memory": "8Mi"});
    class(row, "rows-heavy", "runc", json!({"overhead": {"podFixed": extra}}));
    let amounts = json!({"cpu": "50m", "memory": "16Mi"});
    let container = json!({"resources": {"requests": amounts, "limits": amounts}});
    row.shell("p", STAY, container, json!({"runtimeClassName": "rows-heavy", "overhead": extra}));
    let pod = row.ready("p");
    let uid = text(&pod["metadata"]["uid"]);
    // The pod has more than its container.
    assert_eq!(row.pod_cgroup(uid, "", "memory limit"), (24 << 20).to_string());
    assert_eq!(row.pod_cgroup(uid, "", "cpu quota"), "10000");
    assert_eq!(row.inspect("p", "main")["HostConfig"]["Memory"], 16 << 20);
}

fn os_name_linux(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({"os": {"name": "linux"}}));
    row.ready("p");
}

fn image_is_used_by_id(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({}));
    row.ready("p");
    let seen = row.inspect("p", "main");
    assert!(
        text(&seen["Config"]["Image"]).starts_with("sha256:") && seen["Config"]["Image"] == seen["Image"],
        "{seen}"
    );
}

/// What an image with an entrypoint and a command runs, under these fields of a container.
fn runs(row: &Row<'_>, container: Value) -> Vec<String> {
    row.image("rows/entry:1", "ENTRYPOINT [\"echo\", \"entry\"]\nCMD [\"command\"]\nWORKDIR /srv/own");
    let mut container = container;
    container["image"] = json!("rows/entry:1");
    container["imagePullPolicy"] = json!("Never");
    row.shell("p", "", container, json!({"restartPolicy": "Never"}));
    row.phase("p", "Succeeded");
    row.kubectl(&["logs", "p"]).lines().map(str::to_owned).collect()
}

fn command_empty_is_the_entrypoint_of_the_image(row: &Row<'_>) {
    assert_eq!(runs(row, json!({"command": []})), ["entry command"]);
}

fn args_empty_are_the_command_of_the_image(row: &Row<'_>) {
    assert_eq!(runs(row, json!({})), ["entry command"]);
}

fn command_without_args_drops_those_of_the_image(row: &Row<'_>) {
    assert_eq!(runs(row, json!({"command": ["echo", "own"]})), ["own"]);
}

fn args_without_command_follow_the_entrypoint(row: &Row<'_>) {
    assert_eq!(runs(row, json!({"args": ["own"]})), ["entry own"]);
}

fn working_dir_is_made(row: &Row<'_>) {
    assert_eq!(row.run("p", "pwd", json!({"workingDir": "/not/there/yet"}), json!({})), ["/not/there/yet"]);
}

fn working_dir_of_the_image(row: &Row<'_>) {
    assert_eq!(runs(row, json!({"command": ["pwd"]})), ["/srv/own"]);
}

fn host_port(row: &Row<'_>) {
    let serve = "mkdir /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    row.shell("p", serve, json!({"ports": [{"containerPort": 8080, "hostPort": 18180}]}), json!({}));
    row.ready("p");
    eventually(PATIENCE, "the node's port answers from outside", || {
        let page = row.world.try_sh_outside(&format!("curl -fsS --max-time 2 http://{NODE_IP}:18180/"))?;
        anyhow::ensure!(page == "page\n", "{page:?}");
        Ok(())
    });
}

fn host_port_of_one_address(row: &Row<'_>) {
    let serve = "mkdir /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    let port = json!({"ports": [{"containerPort": 8080, "hostPort": 18181, "hostIP": NODE_IP}]});
    row.shell("p", serve, port, json!({}));
    row.ready("p");
    let ask = |address: &str| row.world.try_sh(&format!("curl -fsS --max-time 2 http://{address}:18181/"));
    eventually(PATIENCE, "the address answers", || ask(NODE_IP));
    assert!(ask("127.0.0.1").is_err());
}

fn health_check_of_the_image_does_not_run(row: &Row<'_>) {
    row.image("rows/health:1", "HEALTHCHECK --interval=1s CMD touch /shared/checked");
    row.shell("p", STAY, json!({"image": "rows/health:1", "imagePullPolicy": "Never"}), json!({}));
    row.ready("p");
    let seen = row.inspect("p", "main");
    assert_eq!((&seen["Config"]["Healthcheck"]["Test"], &seen["State"]["Health"]), (&json!(["NONE"]), &Value::Null));
}

fn stdin(row: &Row<'_>) {
    row.shell("with", STAY, json!({"stdin": true}), json!({}));
    row.shell("without", STAY, json!({}), json!({}));
    row.ready("with");
    row.ready("without");
    let open = |name: &str| row.inspect(name, "main")["Config"]["OpenStdin"].clone();
    assert_eq!((open("with"), open("without")), (json!(true), json!(false)));
}

fn stdin_once(row: &Row<'_>) {
    row.shell("p", STAY, json!({"stdin": true, "stdinOnce": true}), json!({}));
    row.ready("p");
    assert_eq!(row.inspect("p", "main")["Config"]["StdinOnce"], true);
}

fn tty(row: &Row<'_>) {
    let line = "[ -t 1 ] && echo terminal; echo error >&2; exit 0";
    row.shell("p", line, json!({"tty": true}), json!({"restartPolicy": "Never"}));
    row.phase("p", "Succeeded");
    let log = row.kubectl(&["logs", "p"]);
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    assert_eq!(lines, ["terminal", "error"]);
    // Both streams are one.
    let file = std::fs::read_to_string(text(&row.inspect("p", "main")["LogPath"])).expect("Docker's log is there");
    assert!(!file.contains("\"stderr\""), "{file}");
}

fn engine_restarts_nothing(row: &Row<'_>) {
    row.shell("p", STAY, json!({}), json!({}));
    row.ready("p");
    for container in ["POD", "main"] {
        assert_eq!(row.inspect("p", container)["HostConfig"]["RestartPolicy"]["Name"], "no");
    }
}

fn log_driver_and_path(row: &Row<'_>) {
    row.shell("p", "echo word; exec sleep 100000", json!({}), json!({}));
    let pod = row.ready("p");
    let log = row.inspect("p", "main")["HostConfig"]["LogConfig"].clone();
    assert_eq!((text(&log["Type"]), text(&log["Config"]["max-size"])), ("json-file", "10485760"));
    let logs = row.world.dir().join("log");
    let (uid, id) = (text(&pod["metadata"]["uid"]), &row.ids("p", "main")[0]);
    let namespace = &row.namespace;
    for path in [format!("pods/{namespace}_p_{uid}/main/0.log"), format!("containers/p_{namespace}_main-{id}.log")] {
        let text =
            eventually(PATIENCE, "the log is where log agents look", || Ok(std::fs::read_to_string(logs.join(&path))?));
        assert!(text.contains("word"), "{path}: {text}");
    }
    assert_eq!(condition(&pod, "Ready")["status"], "True");
    assert_eq!(main_of(&pod)["restartCount"], 0);
}
