//! Several API servers of one cluster: if the one in use fails in any way, the node uses another one, and pods do not
//! notice.

use std::time::Duration;

use windlass_tests::{
    DEFAULT_TIMEOUT, Kubectl, NODE_IP, Testbed,
    cluster::{ADDRESS, PORT},
    eventually,
};

use crate::{
    faulty_proxy::FaultyProxy,
    workload::{CLUSTER_TIMEOUT, PODS, assert_unchanged, controller, running},
};

crate::tests![failed_api_servers_are_skipped];

const FRONTS: [u16; 3] = [7443, 7444, 7445];

/// The last transition of the node's Ready condition: it changes when the cluster has considered the node lost.
fn ready_since(kubectl: &Kubectl<'_>) -> String {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.status.conditions[?(@.type=='Ready')].lastTransitionTime}";
    kubectl.run(&["get", "node", "node", "-o", path])
}

/// The ports to which the node has connections.
fn connected(testbed: &Testbed) -> Vec<u16> {
    let output = testbed.sh(&format!("ss -Htn state established dst {ADDRESS}"));
    let ports = output.lines().filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next()?.parse().ok());
    let mut ports: Vec<u16> = ports.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Checks that the node renews its lease, with connections to one front only.
#[track_caller]
fn wait_for_failover_to(testbed: &Testbed, kubectl: &Kubectl<'_>, port: u16) {
    let renewed =
        || kubectl.within("kube-node-lease").try_run(&["get", "lease", "node", "-o", "jsonpath={.spec.renewTime}"]);
    eventually(CLUSTER_TIMEOUT, &format!("the node is connected to port {port}"), || {
        let all = connected(testbed);
        anyhow::ensure!(all.contains(&port), "it is to {all:?}");
        Ok(())
    });
    let before = renewed().expect("the API answers");
    eventually(DEFAULT_TIMEOUT, "the lease is renewed", || {
        anyhow::ensure!(renewed()? != before, "it is as old as it was");
        Ok(())
    });
}

fn failed_api_servers_are_skipped() {
    let testbed = Testbed::on_cluster();
    let fronts = FRONTS.map(|port| FaultyProxy::start(&testbed, port, Duration::ZERO));
    let files = testbed.cluster().node("node", &[NODE_IP, "127.0.0.1"]);
    let text = std::fs::read_to_string(&files.kubeconfig).expect("a kubeconfig");
    std::fs::write(&files.kubeconfig, text.replace(&format!(":{PORT}"), &format!(":{}", FRONTS[0])))
        .expect("it can be written");
    let other = |index: usize| format!("https://{ADDRESS}:{}", FRONTS[index]);
    let mut windlass = testbed.windlass();
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(&files.kubeconfig).args(["--server", &other(1), "--server", &other(2)]);
    windlass.start_with(&mut command);
    let kubectl = windlass.is_ready();
    kubectl.apply(&controller("stays", PODS));
    eventually(DEFAULT_TIMEOUT, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    let (before, since) = (running(&testbed), ready_since(&kubectl));
    assert_eq!(connected(&testbed).iter().filter(|port| FRONTS.contains(port)).collect::<Vec<_>>(), [&FRONTS[0]]);

    // The first is killed: connections are reset, new ones refused.
    let rule = |port: u16, what: &str| {
        let line = format!("iptables -I INPUT -i eth0 -p tcp --dport {port} -j {what}");
        testbed.try_sh_outside(&line).expect("root may write rules");
    };
    rule(FRONTS[0], "REJECT --reject-with tcp-reset");
    wait_for_failover_to(&testbed, &kubectl, FRONTS[1]);
    // The next accepts connections and does not respond.
    fronts[1].stop_forwarding();
    wait_for_failover_to(&testbed, &kubectl, FRONTS[2]);
    // The last drops every packet. The addresses from the cluster's endpoints are left.
    rule(FRONTS[2], "DROP");
    wait_for_failover_to(&testbed, &kubectl, PORT);

    assert_eq!(ready_since(&kubectl), since, "the cluster has held the node for lost");
    assert_unchanged(&testbed, &kubectl, &before);
    assert!(windlass.daemon().runs());
}
