//! The Node object, its lease, its readiness and the rights of its proxy, with a real API server.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, NODE_IP, Testbed, cluster::Part, eventually};

crate::tests![
    the_node_object_is_corrected_and_recreated,
    readiness_waits_for_a_cni_configuration,
    the_proxy_waits_for_permission_to_watch_services,
    a_node_has_an_address_of_each_family,
    host_network_pods_do_not_wait_for_a_pod_cidr,
];

const NODE: &str = "node";

/// One field of an object, as text.
fn field(kubectl: &Kubectl<'_>, object: &[&str], path: &str) -> anyhow::Result<String> {
    let path = format!("jsonpath={{{path}}}");
    kubectl.try_run(&[&["get"], object, &["-o", &path]].concat())
}

#[track_caller]
fn becomes(kubectl: &Kubectl<'_>, object: &[&str], path: &str, wanted: &str) {
    eventually(DEFAULT_TIMEOUT, &format!("{path} of {object:?} is {wanted}"), || {
        let found = field(kubectl, object, path)?;
        anyhow::ensure!(found == wanted, "it is {found:?}");
        Ok(())
    });
}

const LEASE: [&str; 4] = ["lease", NODE, "-n", "kube-node-lease"];
const OWNER: &str = ".metadata.ownerReferences[*].uid";

fn the_node_object_is_corrected_and_recreated() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass().with(&["--node-labels", "topology.kubernetes.io/zone=z1,rack=7"]);
    let kubectl = windlass.up();
    let node = ["node", NODE];
    becomes(&kubectl, &node, ".metadata.labels['topology\\.kubernetes\\.io/zone']", "z1");
    becomes(&kubectl, &node, ".metadata.labels.rack", "7");
    let uid = field(&kubectl, &node, ".metadata.uid").expect("the API answers");
    becomes(&kubectl, &LEASE, OWNER, &uid);

    // Wrong writes of others are corrected in the next round.
    let arch = field(&kubectl, &node, ".metadata.labels['kubernetes\\.io/arch']").expect("the API answers");
    let _ = kubectl.run(&["label", "node", NODE, "kubernetes.io/arch=other", "--overwrite"]);
    becomes(&kubectl, &node, ".metadata.labels['kubernetes\\.io/arch']", &arch);

    // A deleted Node is created again, with its own lease.
    let _ = kubectl.run(&["delete", "node", NODE]);
    let again = eventually(DEFAULT_TIMEOUT, "the Node is made again", || {
        let found = field(&kubectl, &node, ".metadata.uid")?;
        anyhow::ensure!(found != uid, "it is the old one");
        Ok(found)
    });
    becomes(&kubectl, &LEASE, OWNER, &again);
    becomes(&kubectl, &node, ".status.conditions[?(@.type=='Ready')].status", "True");
}

fn pod(name: &str, host_network: bool) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "hostNetwork": host_network, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "windlass/busybox:1", "command": ["sleep", "100000"]}],
    }})
    .to_string()
}

fn readiness_waits_for_a_cni_configuration() {
    let testbed = Testbed::on_cluster();
    let (lists, plugins) = (testbed.dir().join("net.d"), testbed.dir().join("plugins"));
    fs::create_dir(&plugins).expect("the testbed can be written to");
    let plugin = plugins.join("fixed");
    let answer = r#"{"cniVersion":"1.0.0","ips":[{"address":"198.51.100.2/24"}]}"#;
    fs::write(&plugin, format!("#!/bin/sh\ncat > /dev/null\n[ \"$CNI_COMMAND\" != ADD ] || echo '{answer}'\n"))
        .expect("the API answers");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("the testbed can be written to");
    let (lists_text, plugins_text) = (lists.display().to_string(), plugins.display().to_string());
    let flags = ["--network", "cni", "--cni-conf-dir", &lists_text, "--cni-bin-dir", &plugins_text];
    let mut windlass = testbed.windlass().with(&flags);
    windlass.start();
    let kubectl = windlass.kubectl();
    let node = ["node", NODE];
    let ready = ".status.conditions[?(@.type=='Ready')].status";
    becomes(&kubectl, &node, ready, "False");
    let why = field(&kubectl, &node, ".status.conditions[?(@.type=='Ready')].message").expect("the API answers");
    let words = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:docker: network plugin is not ready: cni config uninitialized";
    assert!(why.contains(words), "{why}");

    // Pods with host networking start, others report why they wait.
    eventually(DEFAULT_TIMEOUT, "pods may be made", || kubectl.try_run(&["get", "serviceaccount", "default"]));
    kubectl.apply(&pod("host", true));
    kubectl.apply(&pod("own", false));
    becomes(&kubectl, &["pod", "host"], ready, "True");
    let waits = ["events", "--field-selector", "involvedObject.name=own,reason=NetworkNotReady"];
    eventually(DEFAULT_TIMEOUT, "the other one is told why", || {
        let output = field(&kubectl, &waits, ".items[*].message")?;
        anyhow::ensure!(output.starts_with("network is not ready: container runtime network not ready"), "{output:?}");
        Ok(())
    });

    // An incomplete CNI configuration is ignored; a complete one is used at once.
    fs::create_dir(&lists).expect("the testbed can be written to");
    let list = lists.join("10-fixed.conflist");
    fs::write(&list, r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"ty"#).expect("the testbed can be written to");
    eventually(DEFAULT_TIMEOUT, "the file is named", || {
        let why = field(&kubectl, &node, ".status.conditions[?(@.type=='Ready')].message")?;
        anyhow::ensure!(why.contains("10-fixed.conflist"), "{why}");
        Ok(())
    });
    fs::write(&list, r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"fixed"}]}"#)
        .expect("the testbed can be written to");
    becomes(&kubectl, &node, ready, "True");
    becomes(&kubectl, &["pod", "own"], ready, "True");
    assert_eq!(field(&kubectl, &["pod", "own"], ".status.podIP").expect("the API answers"), "198.51.100.2");

    // Without it the node is not ready, and pods keep running.
    fs::remove_file(&list).expect("the testbed can be written to");
    becomes(&kubectl, &node, ready, "False");
    becomes(&kubectl, &["pod", "own"], ".status.phase", "Running");
}

fn the_proxy_waits_for_permission_to_watch_services() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let _ = windlass.kubectl().run(&["delete", "clusterrolebinding", "windlass:node", "--ignore-not-found"]);
    let kubectl = windlass.up();
    let log = || fs::read_to_string(testbed.dir().join("windlass.log")).unwrap_or_default();
    let reports = || log().matches("windlass rbac | kubectl apply -f -").count();
    eventually(DEFAULT_TIMEOUT, "the log says what is missing", || {
        anyhow::ensure!(reports() > 0, "{}", log());
        Ok(())
    });
    let rights = windlass.command("rbac").output().expect("windlass runs");
    assert!(rights.status.success());
    let _ = kubectl.run(&["delete", "clusterrole", "windlass:node", "--ignore-not-found"]);
    kubectl.apply(&String::from_utf8(rights.stdout).expect("a manifest is text"));
    eventually(DEFAULT_TIMEOUT, "services are followed", || {
        anyhow::ensure!(log().contains("the API lets the proxy watch these now"), "not yet");
        Ok(())
    });
    assert_eq!(reports(), 1, "it is said once");
}

fn a_node_has_an_address_of_each_family() {
    const ALL: &str = ".status.addresses[*].address";
    let testbed = Testbed::on_cluster();
    let other = |address: &str| {
        testbed.sh(&format!("ip address add {address}/64 dev eth0 nodad"));
        format!("{NODE_IP},{address}")
    };
    let first = other("2001:db8:18::1");
    let mut windlass = testbed.windlass().with(&["--node-ip", &first]);
    let kubectl = windlass.up();
    becomes(&kubectl, &["node", NODE], ALL, &format!("{NODE_IP} 2001:db8:18::1 {NODE}"));
    let asks = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host"}, "spec": {
        "hostNetwork": true, "restartPolicy": "Never", "containers": [{
            "name": "main", "image": "windlass/busybox:1", "command": ["sh", "-c", "echo $ALL"],
            "env": [{"name": "ALL", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}]}],
    }});
    kubectl.apply(&asks.to_string());
    becomes(&kubectl, &["pod", "host"], ".status.phase", "Succeeded");
    assert_eq!(kubectl.run(&["logs", "host"]).trim(), first);
    for list in [".status.hostIPs[*].ip", ".status.podIPs[*].ip"] {
        becomes(&kubectl, &["pod", "host"], list, &first.replace(',', " "));
    }
    windlass.kill();

    // Another configuration replaces it, and nothing of the old one is left.
    let second = other("2001:db8:18::2");
    let mut windlass = testbed.windlass().with(&["--node-ip", &second]);
    let kubectl = windlass.up();
    becomes(&kubectl, &["node", NODE], ALL, &format!("{NODE_IP} 2001:db8:18::2 {NODE}"));
}

/// A cluster whose pod addresses are allocated externally, and late.
fn host_network_pods_do_not_wait_for_a_pod_cidr() {
    let testbed = Testbed::on_cluster();
    testbed.cluster().change(Part::ControllerManager, &["--allocate-node-cidrs=false"]);
    let mut windlass = testbed.windlass();
    windlass.start();
    let kubectl = windlass.kubectl();
    let why = ".status.conditions[?(@.type=='Ready')].message";
    eventually(DEFAULT_TIMEOUT, "the node says what it waits for", || {
        let output = field(&kubectl, &["node", NODE], why)?;
        anyhow::ensure!(output.contains("spec.podCIDR"), "{output:?}");
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "pods may be made", || kubectl.try_run(&["get", "serviceaccount", "default"]));
    let pinned = |name: &str, host: bool| {
        let mut object: serde_json::Value = serde_json::from_str(&pod(name, host)).expect("a pod is JSON");
        object["spec"]["nodeName"] = json!(NODE);
        object.to_string()
    };
    kubectl.apply(&pinned("host", true));
    kubectl.apply(&pinned("own", false));
    becomes(&kubectl, &["pod", "host"], ".status.phase", "Running");
    assert_eq!(field(&kubectl, &["pod", "own"], ".status.phase").expect("the API answers"), "Pending");
    let range = r#"{"spec":{"podCIDR":"10.244.7.0/24","podCIDRs":["10.244.7.0/24"]}}"#;
    let _ = kubectl.run(&["patch", "node", NODE, "--type=merge", "-p", range]);
    becomes(&kubectl, &["node", NODE], ".status.conditions[?(@.type=='Ready')].status", "True");
    becomes(&kubectl, &["pod", "own"], ".status.phase", "Running");
    let address = field(&kubectl, &["pod", "own"], ".status.podIP").expect("the API answers");
    assert!(address.starts_with("10.244.7."), "{address}");
}
