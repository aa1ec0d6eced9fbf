//! Deletion of pods, and the lifecycle hooks of containers.

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{condition, container_status, shell},
};

use crate::case::{Case, SLEEP_FOREVER, one, text};

crate::cases![
    containers_end_in_parallel,
    sidecars_end_in_reverse_order,
    grace_ends_in_sigkill,
    grace_of_the_deletion_beats_the_spec,
    grace_can_be_shortened,
    pre_stop_runs_before_the_signal,
    pre_stop_skipped_at_grace_zero,
    pre_stop_failed,
    pre_stop_is_cut_off_and_leaves_two_seconds,
    pre_stop_http_get,
    pre_stop_sleep,
    stop_signal_of_the_image,
    probe_termination_grace_period,
    force_deletion,
    deletion_while_post_start_takes_long,
    deletion_while_an_image_is_pulled,
    deletion_during_a_long_pre_stop_shortens_the_grace_period,
    terminal_status_is_reported_before_the_pod_is_deleted,
    sandbox_is_removed_with_the_pod,
    readiness_is_probed_during_termination,
    liveness_probe_stops_at_termination,
    killing_event,
    post_start_runs_after_the_start,
    post_start_failed,
    post_start_http_get,
    post_start_http_get_of_the_own_address_and_a_named_port,
    post_start_https_without_verification,
    post_start_https_falls_back_to_http,
    post_start_sleep,
    hook_tcp_socket_is_an_invalid_handler,
];

/// A container that records the signal, takes its time, and exits with 0.
fn notes(word: &str, takes: &str) -> Value {
    let line = format!(
        "trap 'echo {word}+ >> /shared/ends; sleep {takes}; echo {word}- >> /shared/ends; exit 0' TERM; \
         touch /shared/up-{word}; while :; do sleep 0.05; done"
    );
    shell(&line)
}

/// Waits until the containers have installed their signal handlers.
fn listens(case: &Case<'_>, words: &[&str]) {
    eventually(DEFAULT_TIMEOUT, "the containers are up", || {
        anyhow::ensure!(words.iter().all(|w| case.shared.0.join(format!("up-{w}")).exists()));
        Ok(())
    });
}

/// Creates a pod that stays in the API by a finalizer, so that its last status can be read.
fn create_kept(case: &Case<'_>, name: &str, spec: Value) {
    case.pod_with(name, json!({"finalizers": ["example.com/kept"]}), spec);
}

fn delete(case: &Case<'_>, name: &str) {
    let _ = case.kubectl(&["delete", "pod", name, "--wait=false"]);
}

/// The last state of a kept pod's first container; then the finalizer is removed.
#[track_caller]
fn last_word(case: &Case<'_>, name: &str) -> Value {
    let pod = case.wait(name, "has ended", |p| container_status(p)["state"]["terminated"].is_object());
    let _ = case.kubectl(&["patch", "pod", name, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    container_status(&pod)["state"]["terminated"].clone()
}

fn containers_end_in_parallel(case: &Case<'_>) {
    case.pod(
        "p",
        json!({"terminationGracePeriodSeconds": 20, "containers": [
        {"name": "a", "command": notes("a", "2")}, {"name": "b", "command": notes("b", "2")}]}),
    );
    listens(case, &["a", "b"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    let ends = case.shared.lines("ends");
    assert!(ends.len() == 4 && ends[..2].iter().all(|l| l.ends_with('+')), "{ends:?}");
}

fn sidecars_end_in_reverse_order(case: &Case<'_>) {
    let side = |name: &str| json!({"name": name, "restartPolicy": "Always", "command": notes(name, "0.3")});
    case.pod(
        "p",
        json!({"terminationGracePeriodSeconds": 20, "initContainers": [side("s1"), side("s2")],
        "containers": [{"name": "main", "command": notes("main", "0.3")}]}),
    );
    listens(case, &["s1", "s2", "main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("ends"), ["main+", "main-", "s2+", "s2-", "s1+", "s1-"]);
}

fn grace_ends_in_sigkill(case: &Case<'_>) {
    let line = "trap '' TERM; touch /shared/up-x; while :; do sleep 0.05; done";
    create_kept(case, "p", one(line, json!({}), json!({})));
    listens(case, &["x"]);
    delete(case, "p");
    assert_eq!(last_word(case, "p")["exitCode"], 137);
}

fn grace_of_the_deletion_beats_the_spec(case: &Case<'_>) {
    let line = "trap '' TERM; touch /shared/up-x; while :; do sleep 0.05; done";
    case.shell("p", line, json!({}), json!({"terminationGracePeriodSeconds": 3000}));
    listens(case, &["x"]);
    let _ = case.kubectl(&["delete", "pod", "p", "--grace-period=1"]);
    case.wait_containers_removed("p", "main");
}

fn grace_can_be_shortened(case: &Case<'_>) {
    let line = "trap '' TERM; touch /shared/up-x; while :; do sleep 0.05; done";
    case.shell("p", line, json!({}), json!({"terminationGracePeriodSeconds": 3000}));
    listens(case, &["x"]);
    delete(case, "p");
    case.wait_for_event("p", "Killing Stopping container main");
    let _ = case.kubectl(&["delete", "pod", "p", "--grace-period=1"]);
    case.wait_containers_removed("p", "main");
}

fn hooked(hook: &str, handler: Value, command: Value) -> Value {
    json!({"command": command, "lifecycle": {hook: handler}})
}

fn exec(line: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", line]}})
}

fn pre_stop_runs_before_the_signal(case: &Case<'_>) {
    let hook = exec("echo hook+ >> /shared/ends; sleep 0.5; echo hook- >> /shared/ends");
    let spec = json!({"terminationGracePeriodSeconds": 20});
    case.shell("p", "", hooked("preStop", hook, notes("main", "0")), spec);
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("ends"), ["hook+", "hook-", "main+", "main-"]);
}

fn pre_stop_skipped_at_grace_zero(case: &Case<'_>) {
    let hook = exec("touch /shared/hooked");
    case.shell("p", "", hooked("preStop", hook, notes("main", "0")), json!({"terminationGracePeriodSeconds": 0}));
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    case.wait_removed("p", &["main"]);
    assert!(!case.shared.0.join("hooked").exists());
}

fn pre_stop_failed(case: &Case<'_>) {
    let spec = json!({"terminationGracePeriodSeconds": 20});
    case.shell("p", "", hooked("preStop", exec("exit 9"), notes("main", "0")), spec);
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    case.wait_for_event("p", "FailedPreStopHook");
    assert_eq!(case.shared.lines("ends"), ["main+", "main-"]);
}

fn pre_stop_is_cut_off_and_leaves_two_seconds(case: &Case<'_>) {
    case.shell("p", "", hooked("preStop", exec("sleep 1000"), notes("main", "0.2")), json!({}));
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("ends"), ["main+", "main-"]);
}

fn pre_stop_http_get(case: &Case<'_>) {
    let mut get = case.http_get("bye");
    get["httpHeaders"] = json!([{"name": "X-Own", "value": "mine"}]);
    let spec = json!({"terminationGracePeriodSeconds": 20});
    case.shell("p", "", hooked("preStop", json!({"httpGet": get}), notes("main", "0")), spec);
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    let asked = case.requests();
    assert_eq!((asked.len(), &asked[0]["headers"]["x-own"]), (1, &json!("mine")));
}

fn pre_stop_sleep(case: &Case<'_>) {
    let spec = json!({"terminationGracePeriodSeconds": 20});
    case.shell("p", "", hooked("preStop", json!({"sleep": {"seconds": 1}}), notes("main", "0")), spec);
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("ends"), ["main+", "main-"]);
    assert!(!case.events("p").contains("FailedPreStopHook"));
}

fn stop_signal_of_the_image(case: &Case<'_>) {
    case.image("rows/usr1:1", "STOPSIGNAL USR1");
    let line = "trap 'echo usr1 > /shared/signal; exit 0' USR1; touch /shared/up-x; while :; do sleep 0.05; done";
    let container = json!({"image": "rows/usr1:1", "imagePullPolicy": "Never"});
    case.shell("p", line, container, json!({"terminationGracePeriodSeconds": 20}));
    listens(case, &["x"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("signal"), ["usr1"]);
}

fn probe_termination_grace_period(case: &Case<'_>) {
    let probe = json!({"livenessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1,
        "terminationGracePeriodSeconds": 1}});
    let line = "trap '' TERM; while :; do sleep 0.05; done";
    case.shell("p", line, probe, json!({"terminationGracePeriodSeconds": 3000}));
    let pod = case.wait("p", "is restarted", |p| container_status(p)["restartCount"].as_u64() > Some(0));
    assert_eq!(container_status(&pod)["lastState"]["terminated"]["exitCode"], 137);
    let _ = case.kubectl(&["delete", "pod", "p", "--grace-period=1", "--wait=false"]);
}

fn force_deletion(case: &Case<'_>) {
    let spec = json!({"terminationGracePeriodSeconds": 20});
    case.shell("p", "", json!({"command": notes("main", "0.2")}), spec);
    listens(case, &["main"]);
    let _ = case.kubectl(&["delete", "pod", "p", "--force", "--grace-period=0"]);
    let gone = case.kubectl.output(&["get", "pod", "p"], "");
    assert!(gone.err.contains("NotFound"), "{gone:?}");
    // Its container has the grace period of the pod's spec.
    case.wait_removed("p", &["main", "POD"]);
    assert_eq!(case.shared.lines("ends"), ["main+", "main-"]);
}

fn sandbox_is_removed_with_the_pod(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    let pod = case.wait_ready("p");
    let dir = case.testbed.dir().join("data/pods").join(text(&pod["metadata"]["uid"]));
    let alive = || ["main", "POD"].map(|container| case.running_ids("p", container).len());
    assert!(dir.is_dir());
    assert_eq!(alive(), [1, 1]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(alive(), [0, 0]);
    assert!(!dir.exists());
    let address = text(&pod["status"]["podIP"]);
    assert!(!case.testbed.sh("ip route").lines().any(|l| l.starts_with(&format!("{address} "))));
    // The API removes a pod whose containers are dead; Docker removes them meanwhile.
    case.wait_removed("p", &["POD"]);
}

fn readiness_is_probed_during_termination(case: &Case<'_>) {
    case.shared.touch("ready");
    let probe =
        json!({"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    let line = "trap 'rm /shared/ready; while [ ! -e /shared/go ]; do sleep 0.05; done; exit 0' TERM; \
                while :; do sleep 0.05; done";
    case.shell("p", line, json!({"readinessProbe": probe}), json!({"terminationGracePeriodSeconds": 60}));
    case.wait_ready("p");
    delete(case, "p");
    let pod = case.wait("p", "is not ready any more", |p| condition(p, "Ready")["status"] == "False");
    assert!(
        container_status(&pod)["state"]["running"].is_object() && pod["metadata"]["deletionTimestamp"].is_string(),
        "{pod}"
    );
    case.shared.touch("go");
}

fn liveness_probe_stops_at_termination(case: &Case<'_>) {
    case.shared.touch("alive");
    let probe = json!({"exec": {"command": ["test", "-e", "/shared/alive"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60});
    let line = "trap 'rm /shared/alive; sleep 3; echo done > /shared/done; exit 0' TERM; touch /shared/up-x; \
                while :; do sleep 0.05; done";
    case.shell("p", line, json!({"livenessProbe": probe}), json!({"terminationGracePeriodSeconds": 60}));
    case.wait_ready("p");
    listens(case, &["x"]);
    let _ = case.kubectl(&["delete", "pod", "p"]);
    assert_eq!(case.shared.lines("done"), ["done"]);
    assert!(!case.events("p").contains("failed liveness probe"));
}

fn killing_event(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({}), json!({}));
    case.wait_ready("p");
    let _ = case.kubectl(&["delete", "pod", "p"]);
    case.wait_for_event("p", "Killing Stopping container main");
}

fn post_start_runs_after_the_start(case: &Case<'_>) {
    // The hook runs in the container alongside its first process, and the pod is ready only when it has ended.
    let hook = exec("readlink /proc/1/ns/pid > /shared/hook; sleep 1; touch /shared/hooked");
    let line = "readlink /proc/1/ns/pid > /shared/main; exec sleep 100000";
    case.shell("p", line, json!({"lifecycle": {"postStart": hook}}), json!({}));
    case.wait_ready("p");
    assert!(case.shared.0.join("hooked").exists());
    assert_eq!(case.shared.lines("hook"), case.shared.lines("main"));
}

fn post_start_failed(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": exec("echo because; exit 4")}}), json!({}));
    case.wait_for_event("p", "FailedPostStartHook");
    case.wait("p", "is restarted", |p| container_status(p)["restartCount"].as_u64() > Some(0));
}

fn post_start_http_get(case: &Case<'_>) {
    let mut get = case.http_get("hello");
    get["httpHeaders"] = json!([{"name": "X-Own", "value": "mine"}, {"name": "Host", "value": "some.example"}]);
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"httpGet": get}}}), json!({}));
    case.wait_ready("p");
    let asked = case.requests();
    let headers = &asked[0]["headers"];
    assert_eq!((&headers["x-own"], &headers["host"]), (&json!("mine"), &json!("some.example")));
    // Any status is an answer; the hook fails only without one.
    let mut get = case.http_get("500");
    get["scheme"] = json!("HTTP");
    case.shell("bad", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"httpGet": get}}}), json!({}));
    case.wait_ready("bad");
    assert!(!case.events("bad").contains("FailedPostStartHook"));
    let get = json!({"host": "127.0.0.1", "port": 1});
    case.shell("none", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"httpGet": get}}}), json!({}));
    case.wait_for_event("none", "FailedPostStartHook");
}

fn post_start_http_get_of_the_own_address_and_a_named_port(case: &Case<'_>) {
    let serve = "mkdir /tmp/www; echo hi > /tmp/www/page; httpd -p 8080 -h /tmp/www; exec sleep 100000";
    let wait = exec(
        "until nc -z 127.0.0.1 8080 2>/dev/null || wget -q -O /dev/null http://127.0.0.1:8080/page; do sleep 0.05; done",
    );
    let get = |port: Value| json!({"postStart": {"httpGet": {"path": "/page", "port": port}}});
    case.pod(
        "p",
        json!({"containers": [
        {"name": "server", "command": shell(serve), "lifecycle": {"postStart": wait}},
        {"name": "number", "command": shell(SLEEP_FOREVER), "lifecycle": get(json!(8080))},
        {"name": "named", "command": shell(SLEEP_FOREVER), "lifecycle": get(json!("web")),
            "ports": [{"name": "web", "containerPort": 8080}]}]}),
    );
    case.wait_ready("p");
    assert!(!case.events("p").contains("FailedPostStartHook"));
}

fn post_start_https_without_verification(case: &Case<'_>) {
    let mut get = case.http_get("tls");
    get["scheme"] = json!("HTTPS");
    get["port"] = json!(8102);
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"httpGet": get}}}), json!({}));
    case.wait_ready("p");
    assert_eq!(case.requests().len(), 1);
    assert!(!case.events("p").contains("FailedPostStartHook"));
}

fn post_start_https_falls_back_to_http(case: &Case<'_>) {
    let mut get = case.http_get("plain");
    get["scheme"] = json!("HTTPS");
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"httpGet": get}}}), json!({}));
    case.wait_ready("p");
    case.wait_for_event("p", "LifecycleHTTPFallback");
    assert_eq!(case.requests().len(), 1);
}

fn post_start_sleep(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}), json!({}));
    case.wait_ready("p");
    assert!(!case.events("p").contains("FailedPostStartHook"));
}

fn hook_tcp_socket_is_an_invalid_handler(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"lifecycle": {"postStart": {"tcpSocket": {"port": 80}}}}), json!({}));
    case.wait_for_event("p", "FailedPostStartHook");
}

/// Deletes a pod, whose own grace period is an hour, with one of a second, and waits until nothing of it is left: code
/// that waits for the pod's current step, or its own grace period, does not finish here.
fn goes_soon(case: &Case<'_>, name: &str) {
    let own = case.kubectl(&["get", "pod", name, "-o", "jsonpath={.spec.terminationGracePeriodSeconds}"]);
    assert!(own.trim().parse::<u64>().is_ok_and(|seconds| seconds >= 3600), "{own}");
    let _ = case.kubectl(&["delete", "pod", name, "--grace-period=1", "--timeout=60s"]);
    eventually(DEFAULT_TIMEOUT, "no container is left", || {
        let left = case.testbed.docker(&[
            "ps",
            "-aq",
            "--filter",
            &format!("label=io.kubernetes.pod.namespace={}", case.namespace),
            "--filter",
            &format!("label=io.kubernetes.pod.name={name}"),
        ]);
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
}

fn deletion_while_post_start_takes_long(case: &Case<'_>) {
    let hooks = [
        // A real API rejects a sleep longer than the grace period.
        ("sleep", json!({"sleep": {"seconds": 3600}})),
        ("exec", json!({"exec": {"command": ["sleep", "3600"]}})),
        // Packets to this address are dropped.
        ("http", json!({"httpGet": {"host": "198.18.0.77", "port": 80}})),
    ];
    for (name, hook) in &hooks {
        let spec = json!({"terminationGracePeriodSeconds": 3601});
        case.shell(name, SLEEP_FOREVER, json!({"lifecycle": {"postStart": hook}}), spec);
    }
    for (name, _) in &hooks {
        case.wait(name, "has a container", |p| container_status(p)["containerID"].is_string());
        goes_soon(case, name);
    }
}

fn deletion_while_an_image_is_pulled(case: &Case<'_>) {
    let image = case.failing_registry().image(&format!("hangs-{}", case.namespace));
    case.shell("p", SLEEP_FOREVER, json!({"image": image}), json!({"terminationGracePeriodSeconds": 3600}));
    case.wait_for_event("p", &format!("Pulling Pulling image \"{image}\""));
    goes_soon(case, "p");
    let volume = json!([{"name": "v", "image": {"reference": image}}]);
    case.shell("q", SLEEP_FOREVER, json!({}), json!({"volumes": volume, "terminationGracePeriodSeconds": 3600}));
    case.wait_for_event("q", &format!("Pulling Pulling image \"{image}\""));
    goes_soon(case, "q");
}

fn deletion_during_a_long_pre_stop_shortens_the_grace_period(case: &Case<'_>) {
    let hook = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 3000}}}});
    case.shell("p", SLEEP_FOREVER, hook, json!({"terminationGracePeriodSeconds": 3600}));
    case.wait_ready("p");
    delete(case, "p");
    case.wait_for_event("p", "Killing Stopping container main");
    goes_soon(case, "p");
}

/// A pod with a finalizer shows its last status after everything on the node is removed.
fn terminal_status_is_reported_before_the_pod_is_deleted(case: &Case<'_>) {
    let line = "trap 'exit 5' TERM; touch /shared/up-x; while :; do sleep 0.05; done";
    create_kept(case, "p", one(line, json!({}), json!({})));
    listens(case, &["x"]);
    delete(case, "p");
    case.wait("p", "is over", |p| p["status"]["phase"] == "Failed");
    eventually(DEFAULT_TIMEOUT, "no container is left", || {
        let of = format!("label=io.kubernetes.pod.namespace={}", case.namespace);
        let left = case.testbed.docker(&["ps", "-aq", "--filter", &of]);
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
    // A new agent process finds no containers, and keeps the status.
    let _ = case.kubectl(&["annotate", "pod", "p", "example.com/looked=again"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pod = case.wait("p", "is there", |_| true);
    assert_eq!(pod["status"]["phase"], "Failed");
    let ended = last_word(case, "p");
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(5), &json!("Error")), "{ended}");
}
