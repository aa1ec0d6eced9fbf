//! Docker Engines that are set up otherwise. Pods have what they need from the node: rules of its own, log files of its own.

use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

/// A page at a port of the host, a line in the log, and the outside.
#[test]
fn pods_run_whatever_the_engine_is_set_to() {
    for settings in [
        json!({"log-driver": "none", "iptables": false, "ip-forward": false, "bridge": "none"}),
        json!({"log-driver": "local", "icc": false, "userland-proxy": false, "no-new-privileges": true}),
        json!({"log-opts": {"max-size": "1m", "max-file": "9", "compress": "true", "mode": "non-blocking",
            "labels": "io.kubernetes.pod.name", "tag": "{{.Name}}"}}),
    ] {
        let testbed = Testbed::with_engine_settings(settings.clone());
        let mut windlass = testbed.windlass();
        let kubectl = windlass.up();
        let line = "echo a line; mkdir /tmp/w; echo a page > /tmp/w/index.html; exec httpd -f -p 80 -h /tmp/w";
        let container = json!({"name": "main", "image": "windlass/busybox:1", "command": ["sh", "-c", line],
            "ports": [{"containerPort": 80, "hostPort": 8081}]});
        let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [container]});
        kubectl
            .apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}).to_string());
        eventually(DEFAULT_TIMEOUT, &format!("{settings}: the log has its line"), || {
            let log = kubectl.try_run(&["logs", "web"])?;
            anyhow::ensure!(log == "a line\n", "{log:?}");
            Ok(())
        });
        eventually(DEFAULT_TIMEOUT, &format!("{settings}: the host's port leads to it"), || {
            let page = testbed.try_sh_outside("curl -s -m 3 http://198.18.0.1:8081/")?;
            anyhow::ensure!(page == "a page\n", "{page:?}");
            Ok(())
        });
        eventually(DEFAULT_TIMEOUT, &format!("{settings}: it reaches the outside"), || {
            kubectl.try_run(&["exec", "web", "--", "ping", "-c", "1", "-W", "3", "198.18.0.2"]).map(drop)
        });
    }
}

/// To pods of it, the files of images and of volumes would be others'.
#[test]
fn an_engine_with_users_of_its_own_is_refused() {
    let testbed = Testbed::with_engine_settings(json!({"userns-remap": "daemon"}));
    let refused = testbed.windlass().try_run("check", &[]).expect_err("it is unfit").to_string();
    assert!(refused.contains("userns-remap") && refused.contains("this machine cannot be a node yet"), "{refused}");
}
