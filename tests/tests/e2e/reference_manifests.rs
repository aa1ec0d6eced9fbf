//! Common manifests with images of public names, pulled from a registry.

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

#[test]
fn a_pod_of_two_containers_shares_a_volume() {
    let testbed = Testbed::with_registry();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    // An nginx and a second container that reads the access log from a shared emptyDir.
    kubectl.apply(
        "apiVersion: v1\nkind: ReplicationController\nmetadata:\n  name: nginx-server\nspec:\n  replicas: 2\n  selector:\n    app: nginx\n  \
         template:\n    metadata:\n      labels: {app: nginx, env: dev}\n    spec:\n      containers:\n      - name: nginx-server\n        image: nginx\n        \
         imagePullPolicy: IfNotPresent\n        ports: [{containerPort: 80}]\n        volumeMounts: [{mountPath: /var/log/nginx, name: nginx-logs}]\n      \
         - name: log-output\n        image: busybox\n        imagePullPolicy: IfNotPresent\n        command: [bin/sh]\n        args: [-c, 'tail -F /logdir/access.log']\n        \
         volumeMounts: [{mountPath: /logdir, name: nginx-logs}]\n      volumes: [{name: nginx-logs, emptyDir: {}}]\n",
    );
    let pods =
        eventually(DEFAULT_TIMEOUT, "two pods of two containers are Ready", || kubectl.ready_pods("app=nginx", 2));
    assert!(kubectl.run(&["get", "pods"]).contains("2/2"));
    let address = pods[0]["status"]["podIP"].as_str().unwrap();
    testbed.sh(&format!("curl -fsS http://{address}/"));
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    eventually(DEFAULT_TIMEOUT, "the second container tells the request", || {
        let logs = kubectl.try_run(&["logs", name, "-c", "log-output"])?;
        anyhow::ensure!(logs.contains("GET / HTTP/1.1"), "{logs:?}");
        Ok(())
    });
}

#[test]
fn images_are_pulled_and_host_ports_opened() {
    let testbed = Testbed::with_registry();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    // Policy Always, because of the tag latest: really pulled, through the mirror.
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: pulled, labels: {app: pulled}}\nspec:\n  containers: [{name: nginx, image: nginx}]\n",
    );
    eventually(DEFAULT_TIMEOUT, "the pulled pod is Ready", || kubectl.ready_pods("app=pulled", 1));
    eventually(DEFAULT_TIMEOUT, "the events tell the pull", || {
        let events = kubectl.try_run(&["get", "events", "--field-selector", "involvedObject.name=pulled"])?;
        anyhow::ensure!(
            events.contains("Pulling image \"nginx\"") && events.contains("Successfully pulled image \"nginx\""),
            "{events}"
        );
        Ok(())
    });
    // A controller from JSON with a host port.
    let redis = r#"{"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "redis-controller", "labels": {"name": "redis"}},
        "spec": {"replicas": 1, "selector": {"name": "redis"}, "template": {"metadata": {"labels": {"name": "redis"}},
        "spec": {"containers": [{"name": "redis", "image": "k8stest/redis:test", "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": 6379, "hostPort": 6380}]}]}}}}"#;
    let made = kubectl.output(&["create", "-f", "-"], redis);
    assert!(made.ok, "{made:?}");
    eventually(DEFAULT_TIMEOUT, "redis is Ready", || kubectl.ready_pods("name=redis", 1));
    eventually(DEFAULT_TIMEOUT, "redis answers on the host's port", || {
        for ask in [
            testbed.try_sh("printf 'PING\\r\\nQUIT\\r\\n' | busybox nc -w 2 198.18.0.1 6380"),
            testbed.try_sh_outside("printf 'PING\\r\\nQUIT\\r\\n' | busybox nc -w 2 198.18.0.1 6380"),
        ] {
            let answer = ask?;
            anyhow::ensure!(answer.contains("PONG"), "{answer:?}");
        }
        Ok(())
    });
    // A second pod with the same host port is not scheduled, with a reason.
    let _ = kubectl.run(&["scale", "rc", "redis-controller", "--replicas=2"]);
    eventually(DEFAULT_TIMEOUT, "the scheduler says why", || {
        let events = kubectl.try_run(&["get", "events"])?;
        anyhow::ensure!(events.contains("node(s) didn't have free ports for the requested pod ports"), "{events}");
        Ok(())
    });
}
