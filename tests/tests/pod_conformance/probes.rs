//! Probes, and what follows from their results.

use serde_json::{Value, json};
use windlass_tests::shared_dir::{container_status, is_ready, shell};

use crate::case::{Case, NODE_IP, SLEEP_FOREVER, text};

crate::cases![
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
    grpc_connection_refused,
    named_port,
    defaults,
    readiness_failure_at_first,
    readiness_lost_after_the_failure_threshold,
    readiness_success_threshold,
    liveness_success_at_first,
    liveness_failed,
    liveness_failed_of_policy_never,
    startup_probe_delays_the_others,
    startup_failed,
    initial_delay_seconds,
    event_unhealthy,
];

/// A pod whose container has one probe with a period of a second.
fn probe(case: &Case<'_>, kind: &str, handler: Value) {
    let mut probe = handler;
    for (key, value) in [("periodSeconds", 1), ("failureThreshold", 1)] {
        if probe[key].is_null() {
            probe[key] = json!(value);
        }
    }
    case.shell("p", SLEEP_FOREVER, json!({kind: probe}), json!({}));
}

#[track_caller]
fn is_good(case: &Case<'_>, handler: Value) {
    probe(case, "readinessProbe", handler);
    case.wait_ready("p");
}

#[track_caller]
fn is_bad(case: &Case<'_>, handler: Value, words: &str) {
    probe(case, "readinessProbe", handler);
    case.wait_for_event("p", &format!("Unhealthy Readiness probe {words}"));
    let pod = case.kubectl.json(&["pod", "p"]).expect("the pod is there");
    assert!(!is_ready(&pod) && container_status(&pod)["state"]["running"].is_object(), "{}", pod["status"]);
}

fn exec(line: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", line]}})
}

fn exec_success(case: &Case<'_>) {
    is_good(case, exec("exit 0"));
}

fn exec_failure(case: &Case<'_>) {
    is_bad(case, exec("echo because; exit 1"), "failed: because");
}

fn exec_without_a_shell(case: &Case<'_>) {
    is_bad(case, json!({"exec": {"command": ["exit 0"]}}), "");
}

fn exec_expands_variables(case: &Case<'_>) {
    let probe = json!({"exec": {"command": ["test", "$(WORD)", "=", "psst"]}, "periodSeconds": 1});
    case.shell(
        "p",
        SLEEP_FOREVER,
        json!({"env": [{"name": "WORD", "value": "psst"}], "readinessProbe": probe}),
        json!({}),
    );
    case.wait_ready("p");
}

fn exec_timeout(case: &Case<'_>) {
    let mut slow = exec("sleep 1000");
    slow["timeoutSeconds"] = json!(1);
    is_bad(case, slow, "failed");
}

fn exec_timeout_leaves_no_process(case: &Case<'_>) {
    let mut slow = exec("sleep 4321 & sleep 4321; true");
    slow["timeoutSeconds"] = json!(1);
    let mut hook = json!({"readinessProbe": slow});
    hook["readinessProbe"]["periodSeconds"] = json!(1);
    case.shell("p", SLEEP_FOREVER, hook, json!({}));
    case.wait_for_event("p", "Unhealthy Readiness probe failed");
    std::thread::sleep(std::time::Duration::from_secs(6));
    let id = case.ids("p", "main")[0].clone();
    let output = case.testbed.docker(&["top", &id, "-o", "pid,args"]);
    let left = output.lines().filter(|l| l.contains("sleep 4321")).count();
    // Processes of the current probe, and at most of the previous one: a shell and two commands each.
    assert!(left <= 6, "{output}");
}

fn get(case: &Case<'_>, what: &str) -> Value {
    json!({"httpGet": case.http_get(what)})
}

fn http_get_success(case: &Case<'_>) {
    is_good(case, get(case, "200"));
}

fn http_get_399_is_a_success(case: &Case<'_>) {
    is_good(case, get(case, "399"));
}

fn http_get_400_is_a_failure(case: &Case<'_>) {
    is_bad(case, get(case, "400"), "failed: HTTP probe failed with statuscode: 400");
}

fn http_get_500_is_a_failure(case: &Case<'_>) {
    is_bad(case, get(case, "500"), "failed: HTTP probe failed with statuscode: 500");
}

fn http_get_names_itself(case: &Case<'_>) {
    is_good(case, get(case, "200"));
    let headers = case.requests()[0]["headers"].clone();
    assert!(text(&headers["user-agent"]).starts_with("kube-probe/1."), "{headers}");
    assert_eq!(headers["accept"], "*/*");
    assert_ne!(text(&headers["connection"]).to_lowercase(), "keep-alive");
}

fn http_get_headers(case: &Case<'_>) {
    let mut get = get(case, "200");
    get["httpGet"]["httpHeaders"] = json!([{"name": "X-Own", "value": "mine"}, {"name": "Host", "value": "some.example"},
        {"name": "User-Agent", "value": "other"}]);
    is_good(case, get);
    let headers = case.requests()[0]["headers"].clone();
    assert_eq!((&headers["x-own"], &headers["host"]), (&json!("mine"), &json!("some.example")), "{headers}");
    assert_eq!(headers["user-agent"], "other");
}

/// A container that serves one page.
const SERVE: &str = "mkdir /tmp/www; echo hi > /tmp/www/page; exec httpd -f -p 8080 -h /tmp/www";

fn of_pod(case: &Case<'_>, handler: Value) {
    let mut probe = handler;
    probe["periodSeconds"] = json!(1);
    let ports = json!([{"name": "web", "containerPort": 8080}]);
    case.shell("p", SERVE, json!({"ports": ports, "readinessProbe": probe}), json!({}));
}

fn http_get_of_the_pod_address(case: &Case<'_>) {
    of_pod(case, json!({"httpGet": {"path": "/page", "port": 8080}}));
    case.wait_ready("p");
}

fn http_get_https_without_verification(case: &Case<'_>) {
    let mut get = get(case, "200");
    get["httpGet"]["scheme"] = json!("HTTPS");
    get["httpGet"]["port"] = json!(8102);
    is_good(case, get);
}

fn http_get_redirect_to_the_same_host_is_followed(case: &Case<'_>) {
    is_bad(case, get(case, "same"), "failed: HTTP probe failed with statuscode: 404");
}

fn http_get_redirect_to_another_host_is_a_warning(case: &Case<'_>) {
    is_good(case, get(case, "other"));
    case.wait_for_event("p", "ProbeWarning");
}

fn http_get_timeout(case: &Case<'_>) {
    is_bad(case, get(case, "slow"), "failed");
}

fn tcp_socket(case: &Case<'_>) {
    of_pod(case, json!({"tcpSocket": {"port": 8080}}));
    case.wait_ready("p");
}

fn tcp_socket_refused(case: &Case<'_>) {
    is_bad(case, json!({"tcpSocket": {"port": 8081}}), "failed");
}

/// A pod in the host network probes the node's server: such a probe needs no host.
fn grpc(case: &Case<'_>, service: &str) {
    let _ = case.http_get("");
    let probe = json!({"grpc": {"port": 8103, "service": service}, "periodSeconds": 1, "failureThreshold": 1});
    case.shell("p", SLEEP_FOREVER, json!({"readinessProbe": probe}), json!({"hostNetwork": true}));
}

fn grpc_serving(case: &Case<'_>) {
    grpc(case, "good");
    let pod = case.wait_ready("p");
    assert_eq!(pod["status"]["podIP"], NODE_IP);
}

fn grpc_not_serving(case: &Case<'_>) {
    grpc(case, "bad");
    case.wait_for_event("p", "Unhealthy Readiness probe failed");
}

fn grpc_connection_refused(case: &Case<'_>) {
    is_bad(case, json!({"grpc": {"port": 8199}}), "failed");
}

fn named_port(case: &Case<'_>) {
    of_pod(case, json!({"httpGet": {"path": "/page", "port": "web"}}));
    case.wait_ready("p");
    // A name that matches no port is an error.
    let probe = json!({"tcpSocket": {"port": "none"}, "periodSeconds": 1, "failureThreshold": 1});
    case.shell("q", SLEEP_FOREVER, json!({"readinessProbe": probe}), json!({}));
    case.wait_for_event("q", "Unhealthy");
}

fn defaults(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"livenessProbe": exec("exit 0")}), json!({}));
    let probe = case.wait_ready("p")["spec"]["containers"][0]["livenessProbe"].clone();
    for (key, value) in [("periodSeconds", 10), ("timeoutSeconds", 1), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        assert_eq!(probe[key], value, "{key}");
    }
}

fn readiness_failure_at_first(case: &Case<'_>) {
    let mut late = exec("exit 0");
    late["initialDelaySeconds"] = json!(3600);
    probe(case, "readinessProbe", late);
    let pod = case.wait("p", "runs", |p| container_status(p)["started"] == true);
    assert!(!is_ready(&pod));
}

fn readiness_lost_after_the_failure_threshold(case: &Case<'_>) {
    case.shared.touch("ready");
    let mut probed = exec("echo asked >> /shared/asked; test -e /shared/ready");
    probed["failureThreshold"] = json!(3);
    probe(case, "readinessProbe", probed);
    case.wait_ready("p");
    case.shared.remove("ready");
    let before = case.shared.lines("asked").len();
    case.wait("p", "is ready no more", |p| !is_ready(p));
    let asked = case.shared.lines("asked").len() - before;
    assert!(asked >= 2, "{asked} questions were enough");
    case.shared.touch("ready");
    assert_eq!(container_status(&case.wait_ready("p"))["restartCount"], 0);
}

fn readiness_success_threshold(case: &Case<'_>) {
    let mut probed = exec("echo asked >> /shared/asked");
    probed["successThreshold"] = json!(3);
    is_good(case, probed);
    assert!(case.shared.lines("asked").len() >= 3);
}

fn liveness_success_at_first(case: &Case<'_>) {
    let mut late = exec("exit 1");
    late["initialDelaySeconds"] = json!(3600);
    probe(case, "livenessProbe", late);
    assert_eq!(container_status(&case.wait_ready("p"))["restartCount"], 0);
}

fn liveness_failed(case: &Case<'_>) {
    case.shared.touch("alive");
    probe(case, "livenessProbe", exec("test -e /shared/alive"));
    case.wait_ready("p");
    case.shared.remove("alive");
    case.wait_for_event("p", "Killing Container main failed liveness probe, will be restarted");
    case.shared.touch("alive");
    case.wait("p", "is restarted", |p| container_status(p)["restartCount"] == 1 && is_ready(p));
}

fn liveness_failed_of_policy_never(case: &Case<'_>) {
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    let trap = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 10});
    case.shell("p", trap, json!({"livenessProbe": probe}), spec);
    let pod = case.wait("p", "is over", |p| container_status(p)["state"]["terminated"].is_object());
    assert_eq!(container_status(&pod)["restartCount"], 0);
}

fn startup_probe_delays_the_others(case: &Case<'_>) {
    let probes = json!({
        "startupProbe": {"exec": {"command": ["test", "-e", "/shared/begun"]}, "periodSeconds": 1, "failureThreshold": 100},
        "livenessProbe": {"exec": {"command": ["touch", "/shared/asked"]}, "periodSeconds": 1},
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}});
    case.shell("p", SLEEP_FOREVER, probes, json!({}));
    case.wait_for_event("p", "Unhealthy Startup probe failed");
    let pod = case.kubectl.json(&["pod", "p"]).expect("the pod is there");
    assert!(container_status(&pod)["started"] == false && !is_ready(&pod), "{}", pod["status"]);
    assert!(!case.shared.0.join("asked").exists());
    case.shared.touch("begun");
    case.wait_ready("p");
}

fn startup_failed(case: &Case<'_>) {
    probe(case, "startupProbe", exec("exit 1"));
    case.wait_for_event("p", "Killing Container main failed startup probe, will be restarted");
    case.wait("p", "is restarted", |p| container_status(p)["restartCount"].as_u64() > Some(0));
}

fn initial_delay_seconds(case: &Case<'_>) {
    let mut probed = exec("cut -d. -f1 /proc/uptime >> /shared/asked");
    probed["initialDelaySeconds"] = json!(3);
    let line = "cut -d. -f1 /proc/uptime > /shared/began; exec sleep 100000";
    case.pod(
        "p",
        json!({"containers": [{"name": "main", "command": shell(line),
        "readinessProbe": probed}]}),
    );
    case.wait_ready("p");
    let seconds = |file: &str| case.shared.lines(file)[0].parse::<u64>().expect("whole seconds");
    assert!(seconds("asked") >= seconds("began") + 2);
}

fn event_unhealthy(case: &Case<'_>) {
    probe(case, "livenessProbe", exec("echo what it said; exit 3"));
    case.wait_for_event("p", "Unhealthy Liveness probe failed: what it said");
}
