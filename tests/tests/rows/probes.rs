//! Questions that a node asks of containers, and what follows from answers.

use serde_json::{Value, json};
use windlass_tests::sharing::{is_ready, main_of, shell};

use crate::row::{NODE_IP, Row, STAY, text};

crate::rows![
    exec_success,
    exec_failure,
    exec_without_a_shell,
    exec_expands_variables,
    exec_timeout,
    exec_timeout_leaves_no_process,
    http_get_success,
    http_get_399_is_a_success,
    http_get_400_is_a_failure,
    http_get_500_is_a_failure,
    http_get_names_itself,
    http_get_headers,
    http_get_of_the_pod_address,
    http_get_https_without_verification,
    http_get_redirect_to_the_same_host_is_followed,
    http_get_redirect_to_another_host_is_a_warning,
    http_get_timeout,
    tcp_socket,
    tcp_socket_refused,
    grpc_serving,
    grpc_not_serving,
    grpc_nobody_there,
    named_port,
    defaults,
    readiness_failure_at_first,
    readiness_lost_after_the_failure_threshold,
    readiness_success_threshold,
    liveness_success_at_first,
    liveness_failed,
    liveness_failed_of_policy_never,
    startup_holds_up_the_others,
    startup_failed,
    initial_delay_seconds,
    event_unhealthy,
];

/// A pod whose container has one probe, asked each second.
fn probe(row: &Row<'_>, kind: &str, handler: Value) {
    let mut probe = handler;
    for (key, value) in [("periodSeconds", 1), ("failureThreshold", 1)] {
        if probe[key].is_null() {
            probe[key] = json!(value);
        }
    }
    row.shell("p", STAY, json!({kind: probe}), json!({}));
}

#[track_caller]
fn is_good(row: &Row<'_>, handler: Value) {
    probe(row, "readinessProbe", handler);
    row.ready("p");
}

#[track_caller]
fn is_bad(row: &Row<'_>, handler: Value, words: &str) {
    probe(row, "readinessProbe", handler);
    row.says("p", &format!("Unhealthy Readiness probe {words}"));
    let pod = row.kubectl.json(&["pod", "p"]).expect("the pod is there");
    assert!(!is_ready(&pod) && main_of(&pod)["state"]["running"].is_object(), "{}", pod["status"]);
}

fn exec(line: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", line]}})
}

fn exec_success(row: &Row<'_>) {
    is_good(row, exec("exit 0"));
}

fn exec_failure(row: &Row<'_>) {
    is_bad(row, exec("echo because; exit 1"), "failed: because");
}

fn exec_without_a_shell(row: &Row<'_>) {
    is_bad(row, json!({"exec": {"command": ["exit 0"]}}), "");
}

fn exec_expands_variables(row: &Row<'_>) {
    let probe = json!({"exec": {"command": ["test", "$(WORD)", "=", "psst"]}, "periodSeconds": 1});
    row.shell("p", STAY, json!({"env": [{"name": "WORD", "value": "psst"}], "readinessProbe": probe}), json!({}));
    row.ready("p");
}

fn exec_timeout(row: &Row<'_>) {
    let mut slow = exec("sleep 1000");
    slow["timeoutSeconds"] = json!(1);
    is_bad(row, slow, "failed");
}

fn exec_timeout_leaves_no_process(row: &Row<'_>) {
    let mut slow = exec("sleep 4321 & sleep 4321; true");
    slow["timeoutSeconds"] = json!(1);
    let mut hook = json!({"readinessProbe": slow});
    hook["readinessProbe"]["periodSeconds"] = json!(1);
    row.shell("p", STAY, hook, json!({}));
    row.says("p", "Unhealthy Readiness probe failed");
    std::thread::sleep(std::time::Duration::from_secs(6));
    let id = row.ids("p", "main")[0].clone();
    let told = row.world.docker(&["top", &id, "-o", "pid,args"]);
    let left = told.lines().filter(|l| l.contains("sleep 4321")).count();
    // Those of the probe that is being asked, and of the one before it at most: a shell and two commands each.
    assert!(left <= 6, "{told}");
}

fn get(row: &Row<'_>, what: &str) -> Value {
    json!({"httpGet": row.get(what)})
}

fn http_get_success(row: &Row<'_>) {
    is_good(row, get(row, "200"));
}

fn http_get_399_is_a_success(row: &Row<'_>) {
    is_good(row, get(row, "399"));
}

fn http_get_400_is_a_failure(row: &Row<'_>) {
    is_bad(row, get(row, "400"), "failed: HTTP probe failed with statuscode: 400");
}

fn http_get_500_is_a_failure(row: &Row<'_>) {
    is_bad(row, get(row, "500"), "failed: HTTP probe failed with statuscode: 500");
}

fn http_get_names_itself(row: &Row<'_>) {
    is_good(row, get(row, "200"));
    let headers = row.requests()[0]["headers"].clone();
    assert!(text(&headers["user-agent"]).starts_with("kube-probe/1."), "{headers}");
    assert_eq!(headers["accept"], "*/*");
    assert_ne!(text(&headers["connection"]).to_lowercase(), "keep-alive");
}

fn http_get_headers(row: &Row<'_>) {
    let mut get = get(row, "200");
    get["httpGet"]["httpHeaders"] = json!([{"name": "X-Own", "value": "mine"}, {"name": "Host", "value": "some.example"},
        {"name": "User-Agent", "value": "other"}]);
    is_good(row, get);
    let headers = row.requests()[0]["headers"].clone();
    assert_eq!((&headers["x-own"], &headers["host"]), (&json!("mine"), &json!("some.example")), "{headers}");
    assert_eq!(headers["user-agent"], "other");
}

/// A container that serves one page.
const SERVE: &str = "mkdir /tmp/www; echo hi > /tmp/www/page; exec httpd -f -p 8080 -h /tmp/www";

fn of_pod(row: &Row<'_>, handler: Value) {
    let mut probe = handler;
    probe["periodSeconds"] = json!(1);
    let ports = json!([{"name": "web", "containerPort": 8080}]);
    row.shell("p", SERVE, json!({"ports": ports, "readinessProbe": probe}), json!({}));
}

fn http_get_of_the_pod_address(row: &Row<'_>) {
    of_pod(row, json!({"httpGet": {"path": "/page", "port": 8080}}));
    row.ready("p");
}

fn http_get_https_without_verification(row: &Row<'_>) {
    let mut get = get(row, "200");
    get["httpGet"]["scheme"] = json!("HTTPS");
    get["httpGet"]["port"] = json!(8102);
    is_good(row, get);
}

fn http_get_redirect_to_the_same_host_is_followed(row: &Row<'_>) {
    is_bad(row, get(row, "same"), "failed: HTTP probe failed with statuscode: 404");
}

fn http_get_redirect_to_another_host_is_a_warning(row: &Row<'_>) {
    is_good(row, get(row, "other"));
    row.says("p", "ProbeWarning");
}

fn http_get_timeout(row: &Row<'_>) {
    is_bad(row, get(row, "slow"), "failed");
}

fn tcp_socket(row: &Row<'_>) {
    of_pod(row, json!({"tcpSocket": {"port": 8080}}));
    row.ready("p");
}

fn tcp_socket_refused(row: &Row<'_>) {
    is_bad(row, json!({"tcpSocket": {"port": 8081}}), "failed");
}

/// A pod in the node's network asks the node's own server: such a probe names no host.
fn grpc(row: &Row<'_>, service: &str) {
    let _ = row.get("");
    let probe = json!({"grpc": {"port": 8103, "service": service}, "periodSeconds": 1, "failureThreshold": 1});
    row.shell("p", STAY, json!({"readinessProbe": probe}), json!({"hostNetwork": true}));
}

fn grpc_serving(row: &Row<'_>) {
    grpc(row, "good");
    let pod = row.ready("p");
    assert_eq!(pod["status"]["podIP"], NODE_IP);
}

fn grpc_not_serving(row: &Row<'_>) {
    grpc(row, "bad");
    row.says("p", "Unhealthy Readiness probe failed");
}

fn grpc_nobody_there(row: &Row<'_>) {
    is_bad(row, json!({"grpc": {"port": 8199}}), "failed");
}

fn named_port(row: &Row<'_>) {
    of_pod(row, json!({"httpGet": {"path": "/page", "port": "web"}}));
    row.ready("p");
    // A name that no port has is no port at all.
    let probe = json!({"tcpSocket": {"port": "none"}, "periodSeconds": 1, "failureThreshold": 1});
    row.shell("q", STAY, json!({"readinessProbe": probe}), json!({}));
    row.says("q", "Unhealthy");
}

fn defaults(row: &Row<'_>) {
    row.shell("p", STAY, json!({"livenessProbe": exec("exit 0")}), json!({}));
    let probe = row.ready("p")["spec"]["containers"][0]["livenessProbe"].clone();
    for (key, value) in [("periodSeconds", 10), ("timeoutSeconds", 1), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        assert_eq!(probe[key], value, "{key}");
    }
}

fn readiness_failure_at_first(row: &Row<'_>) {
    let mut late = exec("exit 0");
    late["initialDelaySeconds"] = json!(3600);
    probe(row, "readinessProbe", late);
    let pod = row.wait("p", "runs", |p| main_of(p)["started"] == true);
    assert!(!is_ready(&pod));
}

fn readiness_lost_after_the_failure_threshold(row: &Row<'_>) {
    row.shared.put("ready");
    let mut probed = exec("echo asked >> /shared/asked; test -e /shared/ready");
    probed["failureThreshold"] = json!(3);
    probe(row, "readinessProbe", probed);
    row.ready("p");
    row.shared.take("ready");
    let before = row.shared.lines("asked").len();
    row.wait("p", "is ready no more", |p| !is_ready(p));
    let asked = row.shared.lines("asked").len() - before;
    assert!(asked >= 2, "{asked} questions were enough");
    row.shared.put("ready");
    assert_eq!(main_of(&row.ready("p"))["restartCount"], 0);
}

fn readiness_success_threshold(row: &Row<'_>) {
    let mut probed = exec("echo asked >> /shared/asked");
    probed["successThreshold"] = json!(3);
    is_good(row, probed);
    assert!(row.shared.lines("asked").len() >= 3);
}

fn liveness_success_at_first(row: &Row<'_>) {
    let mut late = exec("exit 1");
    late["initialDelaySeconds"] = json!(3600);
    probe(row, "livenessProbe", late);
    assert_eq!(main_of(&row.ready("p"))["restartCount"], 0);
}

fn liveness_failed(row: &Row<'_>) {
    row.shared.put("alive");
    probe(row, "livenessProbe", exec("test -e /shared/alive"));
    row.ready("p");
    row.shared.take("alive");
    row.says("p", "Killing Container main failed liveness probe, will be restarted");
    row.shared.put("alive");
    row.wait("p", "is restarted", |p| main_of(p)["restartCount"] == 1 && is_ready(p));
}

fn liveness_failed_of_policy_never(row: &Row<'_>) {
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    let trap = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 10});
    row.shell("p", trap, json!({"livenessProbe": probe}), spec);
    let pod = row.wait("p", "is over", |p| main_of(p)["state"]["terminated"].is_object());
    assert_eq!(main_of(&pod)["restartCount"], 0);
}

fn startup_holds_up_the_others(row: &Row<'_>) {
    let probes = json!({
        "startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1, "failureThreshold": 100},
        "livenessProbe": {"exec": {"command": ["touch", "/shared/asked"]}, "periodSeconds": 1},
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}});
    row.shell("p", STAY, probes, json!({}));
    row.says("p", "Unhealthy Startup probe failed");
    let pod = row.kubectl.json(&["pod", "p"]).expect("the pod is there");
    assert!(main_of(&pod)["started"] == false && !is_ready(&pod), "{}", pod["status"]);
    assert!(!row.shared.0.join("asked").exists());
    row.shared.put("begun");
    row.ready("p");
}

fn startup_failed(row: &Row<'_>) {
    probe(row, "startupProbe", exec("exit 1"));
    row.says("p", "Killing Container main failed startup probe, will be restarted");
    row.wait("p", "is restarted", |p| main_of(p)["restartCount"].as_u64() > Some(0));
}

fn initial_delay_seconds(row: &Row<'_>) {
    let mut probed = exec("cut -d. -f1 /proc/uptime >> /shared/asked");
    probed["initialDelaySeconds"] = json!(3);
    let line = "cut -d. -f1 /proc/uptime > /shared/began; exec sleep 100000";
    row.pod(
        "p",
        json!({"containers": [{"name": "main", "command": shell(line),
        "readinessProbe": probed}]}),
    );
    row.ready("p");
    let seconds = |file: &str| row.shared.lines(file)[0].parse::<u64>().expect("whole seconds");
    assert!(seconds("asked") >= seconds("began") + 2);
}

fn event_unhealthy(row: &Row<'_>) {
    probe(row, "livenessProbe", exec("echo what it said; exit 3"));
    row.says("p", "Unhealthy Liveness probe failed: what it said");
}
