//! Fields of a pod's spec and its containers that no other file covers.

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{condition, container_status, shell},
};

use crate::case::{Case, NODE_IP, SLEEP_FOREVER, text};

crate::cases![
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
    working_dir_is_created,
    working_dir_of_the_image,
    host_port,
    host_port_of_one_address,
    health_check_of_the_image_does_not_run,
    stdin,
    stdin_once,
    tty,
    restart_policy_of_the_engine_is_no,
    log_driver_and_path,
];

fn node_selector(case: &Case<'_>) {
    case.shell("here", SLEEP_FOREVER, json!({}), json!({"nodeSelector": {"kubernetes.io/hostname": "node"}}));
    case.shell("nowhere", SLEEP_FOREVER, json!({}), json!({"nodeSelector": {"colour": "none"}}));
    case.wait_ready("here");
    case.wait_for_event("nowhere", "FailedScheduling");
    assert!(case.ids("nowhere", "POD").is_empty());
}

fn node_affinity_required(case: &Case<'_>) {
    let affinity = |value: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": [value]}]}]}}}})
    };
    case.shell("here", SLEEP_FOREVER, json!({}), affinity("linux"));
    case.shell("nowhere", SLEEP_FOREVER, json!({}), affinity("plan9"));
    case.wait_ready("here");
    case.wait_for_event("nowhere", "FailedScheduling");
}

fn node_name(case: &Case<'_>) {
    // It is not scheduled, and the node ignores pods of other nodes.
    case.shell("here", SLEEP_FOREVER, json!({}), json!({"nodeName": "node"}));
    case.shell("elsewhere", SLEEP_FOREVER, json!({}), json!({"nodeName": "another"}));
    case.wait_ready("here");
    assert!(case.ids("elsewhere", "POD").is_empty());
}

fn service_account_name(case: &Case<'_>) {
    let _ = case.kubectl(&["create", "serviceaccount", "own"]);
    let line = "cut -d. -f2 /var/run/secrets/kubernetes.io/serviceaccount/token | tr '_-' '/+' | \
                (cat; echo ===) | base64 -d 2>/dev/null";
    let output = case.run("p", line, json!({}), json!({"serviceAccountName": "own"})).concat();
    assert!(output.contains(&format!("system:serviceaccount:{}:own", case.namespace)), "{output}");
}

fn automount_service_account_token_false(case: &Case<'_>) {
    let line = "ls /var/run/secrets/kubernetes.io/serviceaccount";
    let output = case.run("p", line, json!({}), json!({"automountServiceAccountToken": false}));
    assert!(output.concat().contains("No such file"), "{output:?}");
}

/// The namespaces of a pod's container: network, processes, IPC and names.
fn namespaces(case: &Case<'_>, name: &str, spec: Value) -> Vec<String> {
    case.run(name, "for n in net pid ipc uts; do readlink /proc/self/ns/$n; done", json!({}), spec)
}

fn of_machine(kind: &str) -> String {
    let path = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("procfs is there");
    path.to_string_lossy().into_owned()
}

fn host_network(case: &Case<'_>) {
    let seen = namespaces(case, "p", json!({"hostNetwork": true}));
    assert_eq!(seen[0], case.testbed.sh("readlink /proc/self/ns/net").trim());
    assert_ne!(seen[1], of_machine("pid"));
    case.shell("stays", SLEEP_FOREVER, json!({"ports": [{"containerPort": 18999}]}), json!({"hostNetwork": true}));
    let pod = case.wait_ready("stays");
    assert_eq!((text(&pod["status"]["podIP"]), text(&pod["status"]["hostIP"])), (NODE_IP, NODE_IP));
    assert_eq!(pod["spec"]["containers"][0]["ports"][0]["hostPort"], 18999);
}

fn host_pid(case: &Case<'_>) {
    let seen = namespaces(case, "p", json!({"hostPID": true}));
    assert_eq!(seen[1], of_machine("pid"));
}

fn host_ipc(case: &Case<'_>) {
    let seen = namespaces(case, "p", json!({"hostIPC": true}));
    assert_eq!(seen[2], of_machine("ipc"));
}

fn own_namespaces(case: &Case<'_>) {
    let seen = namespaces(case, "p", json!({}));
    assert_ne!(seen[0], case.testbed.sh("readlink /proc/self/ns/net").trim());
    for (at, kind) in [(1, "pid"), (2, "ipc"), (3, "uts")] {
        assert_ne!(seen[at], of_machine(kind));
    }
}

fn share_process_namespace(case: &Case<'_>) {
    let two = |name: &str, share: bool| {
        let line = format!("sleep 1; ps > /shared/.{name}; mv /shared/.{name} /shared/{name}; exec sleep 100000");
        case.pod(
            name,
            json!({"shareProcessNamespace": share, "containers": [
            {"name": "a", "command": shell("exec sleep 7654")}, {"name": "b", "command": shell(&line)}]}),
        );
        case.output(name).join("\n")
    };
    let (shared, own) = (two("shared", true), two("own", false));
    assert!(shared.contains("sleep 7654") && shared.contains("/pause"), "{shared}");
    assert!(!own.contains("sleep 7654"), "{own}");
}

fn class(case: &Case<'_>, name: &str, handler: &str, rest: Value) {
    let mut class = rest;
    class["apiVersion"] = json!("node.k8s.io/v1");
    class["kind"] = json!("RuntimeClass");
    class["metadata"] = json!({"name": name});
    class["handler"] = json!(handler);
    case.apply(&[class]);
}

fn runtime_class(case: &Case<'_>) {
    class(case, "rows-runc", "runc", json!({}));
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"runtimeClassName": "rows-runc"}));
    case.wait_ready("p");
    for container in ["POD", "main"] {
        assert_eq!(case.inspect("p", container)["HostConfig"]["Runtime"], "runc");
    }
}

fn runtime_class_of_an_unknown_handler(case: &Case<'_>) {
    class(case, "rows-none", "nobody-has-this", json!({}));
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"runtimeClassName": "rows-none"}));
    case.wait_for_event("p", "FailedCreatePodSandBox");
    assert_eq!(case.kubectl(&["get", "pod", "p", "-o", "jsonpath={.status.phase}"]), "Pending");
}

fn overhead(case: &Case<'_>) {
    let extra = json!({"cpu": "50m", "memory": "8Mi"});
    class(case, "rows-heavy", "runc", json!({"overhead": {"podFixed": extra}}));
    let amounts = json!({"cpu": "50m", "memory": "16Mi"});
    let container = json!({"resources": {"requests": amounts, "limits": amounts}});
    case.shell("p", SLEEP_FOREVER, container, json!({"runtimeClassName": "rows-heavy", "overhead": extra}));
    let pod = case.wait_ready("p");
    let uid = text(&pod["metadata"]["uid"]);
    // The pod has more than its container.
    assert_eq!(case.pod_cgroup(uid, "", "memory limit"), (24 << 20).to_string());
    assert_eq!(case.pod_cgroup(uid, "", "cpu quota"), "10000");
    assert_eq!(case.inspect("p", "main")["HostConfig"]["Memory"], 16 << 20);
}

fn os_name_linux(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({"os": {"name": "linux"}}));
    case.wait_ready("p");
}

fn image_is_used_by_id(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("p");
    let seen = case.inspect("p", "main");
    assert!(
        text(&seen["Config"]["Image"]).starts_with("sha256:") && seen["Config"]["Image"] == seen["Image"],
        "{seen}"
    );
}

/// The command line that results from an image with entrypoint and command and these fields of a container.
fn runs(case: &Case<'_>, container: Value) -> Vec<String> {
    case.image("rows/entry:1", "ENTRYPOINT [\"echo\", \"entry\"]\nCMD [\"command\"]\nWORKDIR /srv/own");
    let mut container = container;
    container["image"] = json!("rows/entry:1");
    container["imagePullPolicy"] = json!("Never");
    case.shell("p", "", container, json!({"restartPolicy": "Never"}));
    case.wait_phase("p", "Succeeded");
    case.kubectl(&["logs", "p"]).lines().map(str::to_owned).collect()
}

fn command_empty_is_the_entrypoint_of_the_image(case: &Case<'_>) {
    assert_eq!(runs(case, json!({"command": []})), ["entry command"]);
}

fn args_empty_are_the_command_of_the_image(case: &Case<'_>) {
    assert_eq!(runs(case, json!({})), ["entry command"]);
}

fn command_without_args_drops_those_of_the_image(case: &Case<'_>) {
    assert_eq!(runs(case, json!({"command": ["echo", "own"]})), ["own"]);
}

fn args_without_command_follow_the_entrypoint(case: &Case<'_>) {
    assert_eq!(runs(case, json!({"args": ["own"]})), ["entry own"]);
}

fn working_dir_is_created(case: &Case<'_>) {
    assert_eq!(case.run("p", "pwd", json!({"workingDir": "/not/there/yet"}), json!({})), ["/not/there/yet"]);
}

fn working_dir_of_the_image(case: &Case<'_>) {
    assert_eq!(runs(case, json!({"command": ["pwd"]})), ["/srv/own"]);
}

fn host_port(case: &Case<'_>) {
    let serve = "mkdir /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    case.shell("p", serve, json!({"ports": [{"containerPort": 8080, "hostPort": 18180}]}), json!({}));
    case.wait_ready("p");
    eventually(DEFAULT_TIMEOUT, "the node's port answers from outside", || {
        let page = case.testbed.try_sh_outside(&format!("curl -fsS --max-time 2 http://{NODE_IP}:18180/"))?;
        anyhow::ensure!(page == "page\n", "{page:?}");
        Ok(())
    });
}

fn host_port_of_one_address(case: &Case<'_>) {
    let serve = "mkdir /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    let port = json!({"ports": [{"containerPort": 8080, "hostPort": 18181, "hostIP": NODE_IP}]});
    case.shell("p", serve, port, json!({}));
    case.wait_ready("p");
    let ask = |address: &str| case.testbed.try_sh(&format!("curl -fsS --max-time 2 http://{address}:18181/"));
    eventually(DEFAULT_TIMEOUT, "the address answers", || ask(NODE_IP));
    assert!(ask("127.0.0.1").is_err());
}

fn health_check_of_the_image_does_not_run(case: &Case<'_>) {
    case.image("rows/health:1", "HEALTHCHECK --interval=1s CMD touch /shared/checked");
    case.shell("p", SLEEP_FOREVER, json!({"image": "rows/health:1", "imagePullPolicy": "Never"}), json!({}));
    case.wait_ready("p");
    let seen = case.inspect("p", "main");
    assert_eq!((&seen["Config"]["Healthcheck"]["Test"], &seen["State"]["Health"]), (&json!(["NONE"]), &Value::Null));
}

fn stdin(case: &Case<'_>) {
    case.shell("with", SLEEP_FOREVER, json!({"stdin": true}), json!({}));
    case.shell("without", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("with");
    case.wait_ready("without");
    let open = |name: &str| case.inspect(name, "main")["Config"]["OpenStdin"].clone();
    assert_eq!((open("with"), open("without")), (json!(true), json!(false)));
}

fn stdin_once(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"stdin": true, "stdinOnce": true}), json!({}));
    case.wait_ready("p");
    assert_eq!(case.inspect("p", "main")["Config"]["StdinOnce"], true);
}

fn tty(case: &Case<'_>) {
    let line = "[ -t 1 ] && echo terminal; echo error >&2; exit 0";
    case.shell("p", line, json!({"tty": true}), json!({"restartPolicy": "Never"}));
    case.wait_phase("p", "Succeeded");
    let log = case.kubectl(&["logs", "p"]);
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    assert_eq!(lines, ["terminal", "error"]);
    // A terminal merges both streams.
    let file = std::fs::read_to_string(text(&case.inspect("p", "main")["LogPath"])).expect("Docker's log is there");
    assert!(!file.contains("\"stderr\""), "{file}");
}

fn restart_policy_of_the_engine_is_no(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("p");
    for container in ["POD", "main"] {
        assert_eq!(case.inspect("p", container)["HostConfig"]["RestartPolicy"]["Name"], "no");
    }
}

fn log_driver_and_path(case: &Case<'_>) {
    case.shell("p", "echo word; exec sleep 100000", json!({}), json!({}));
    let pod = case.wait_ready("p");
    let log = case.inspect("p", "main")["HostConfig"]["LogConfig"].clone();
    assert_eq!((text(&log["Type"]), text(&log["Config"]["max-size"])), ("json-file", "10485760"));
    let logs = case.testbed.dir().join("log");
    let (uid, id) = (text(&pod["metadata"]["uid"]), &case.ids("p", "main")[0]);
    let namespace = &case.namespace;
    for path in [format!("pods/{namespace}_p_{uid}/main/0.log"), format!("containers/p_{namespace}_main-{id}.log")] {
        let text = eventually(DEFAULT_TIMEOUT, "the log is where log agents look", || {
            Ok(std::fs::read_to_string(logs.join(&path))?)
        });
        assert!(text.contains("word"), "{path}: {text}");
    }
    assert_eq!(condition(&pod, "Ready")["status"], "True");
    assert_eq!(container_status(&pod)["restartCount"], 0);
}
