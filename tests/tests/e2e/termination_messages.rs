//! Status of ended containers that survives a restart of windlass: termination messages and restart counts.

use serde_json::{Value, json};
use windlass_tests::Testbed;

use crate::shared_dir::{SharedDir, container_status, is_ready, shell, wait_for};

#[test]
fn termination_messages() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let ended = |p: &Value| container_status(p)["state"]["terminated"].clone();
    for (name, container, message) in [
        ("written", json!({"command": shell("printf done > /dev/termination-log; exit 1")}), json!("done")),
        (
            "elsewhere",
            json!({"command": shell("printf mine > /tmp/own"), "terminationMessagePath": "/tmp/own",
                "securityContext": {"runAsUser": 1000}}),
            json!("mine"),
        ),
        (
            "printed",
            json!({"command": shell("echo last words; exit 3"), "terminationMessagePolicy": "FallbackToLogsOnError"}),
            json!("last words\n"),
        ),
        (
            "well",
            json!({"command": shell("echo words"), "terminationMessagePolicy": "FallbackToLogsOnError"}),
            Value::Null,
        ),
        ("long", json!({"command": shell("yes x | head -c 9000 > /dev/termination-log")}), json!("x\n".repeat(2048))),
    ] {
        let mut main = container;
        main["name"] = json!("main");
        kubectl.apply(&shared.pod(name, json!({"restartPolicy": "Never", "containers": [main]})));
        let pod = wait_for(&kubectl, name, "has ended", |p| ended(p).is_object());
        assert_eq!(ended(&pod)["message"], message, "{name}");
    }
    // A new process reports the same status.
    windlass.kill();
    let kubectl = windlass.up();
    let pod = kubectl.json(&["pod", "printed"]).unwrap();
    assert_eq!(ended(&pod)["message"], "last words\n");
}

#[test]
fn restart_counts_go_on() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    kubectl.apply(&shared.pod("p", json!({"containers": [{"name": "main", "command": shell("exec sleep 1000")}]})));
    wait_for(&kubectl, "p", "is ready", is_ready);
    let kill = |what: &[&str]| {
        let id = testbed.docker(&["ps", "-q", "--filter", "label=io.kubernetes.container.name=main"]);
        let mut args = what.to_vec();
        args.push(id.trim());
        let _ = testbed.docker(&args);
    };
    kill(&["kill"]);
    wait_for(&kubectl, "p", "was restarted", |p| container_status(p)["restartCount"] == 1 && is_ready(p));
    // All its containers are removed during the downtime: the restart count continues.
    windlass.kill();
    let all = testbed.docker(&["ps", "-aq", "--filter", "label=io.kubernetes.container.name=main"]);
    let ids: Vec<&str> = all.lines().collect();
    let _ = testbed.docker(&[&["rm", "-f"], ids.as_slice()].concat());
    let kubectl = windlass.up();
    let pod = wait_for(&kubectl, "p", "runs again", |p| is_ready(p) && container_status(p)["restartCount"] != 1);
    assert_eq!(container_status(&pod)["restartCount"], 2);
}
