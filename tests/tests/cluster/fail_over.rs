//! Several API servers of one cluster: whichever way those fail that are asked, another one is, and nobody else notices.

use std::time::Duration;

use windlass_tests::{
    Kubectl, NODE_IP, PATIENCE, World,
    cluster::{ADDRESS, PORT},
    eventually,
};

use crate::{
    front::Front,
    sharing::{LONG, PODS, controller, is_as_before, running},
};

crate::tests![servers_that_fail_are_passed_over];

const FRONTS: [u16; 3] = [7443, 7444, 7445];

/// Since when the node has been Ready: the cluster moves it when it has held the node for lost.
fn ready_since(kubectl: &Kubectl<'_>) -> String {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.status.conditions[?(@.type=='Ready')].lastTransitionTime}";
    kubectl.run(&["get", "node", "node", "-o", path])
}

/// The ports that the node has connections to.
fn connected(world: &World) -> Vec<u16> {
    let told = world.sh(&format!("ss -Htn state established dst {ADDRESS}"));
    let ports = told.lines().filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next()?.parse().ok());
    let mut ports: Vec<u16> = ports.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The node renews its lease, and its connections are to one front.
#[track_caller]
fn goes_over_to(world: &World, kubectl: &Kubectl<'_>, port: u16) {
    let renewed =
        || kubectl.within("kube-node-lease").try_run(&["get", "lease", "node", "-o", "jsonpath={.spec.renewTime}"]);
    eventually(LONG, &format!("the node is connected to port {port}"), || {
        let all = connected(world);
        anyhow::ensure!(all.contains(&port), "it is to {all:?}");
        Ok(())
    });
    let before = renewed().expect("the API answers");
    eventually(PATIENCE, "the lease is renewed", || {
        anyhow::ensure!(renewed()? != before, "it is as old as it was");
        Ok(())
    });
}

fn servers_that_fail_are_passed_over() {
    let world = World::on_cluster();
    let fronts = FRONTS.map(|port| Front::start(&world, port, Duration::ZERO));
    let files = world.cluster().node("node", &[NODE_IP, "127.0.0.1"]);
    let text = std::fs::read_to_string(&files.kubeconfig).expect("a kubeconfig");
    std::fs::write(&files.kubeconfig, text.replace(&format!(":{PORT}"), &format!(":{}", FRONTS[0])))
        .expect("it can be written");
    let other = |index: usize| format!("https://{ADDRESS}:{}", FRONTS[index]);
    let mut windlass = world.windlass();
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(&files.kubeconfig).args(["--server", &other(1), "--server", &other(2)]);
    windlass.start_with(&mut command);
    let kubectl = windlass.is_ready();
    kubectl.apply(&controller("stays", PODS));
    eventually(PATIENCE, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    let (before, since) = (running(&world), ready_since(&kubectl));
    assert_eq!(connected(&world).iter().filter(|port| FRONTS.contains(port)).collect::<Vec<_>>(), [&FRONTS[0]]);

    // The first is killed: whoever has a connection to it, or wants one, is told so.
    let rule = |port: u16, what: &str| {
        let line = format!("iptables -I INPUT -i eth0 -p tcp --dport {port} -j {what}");
        world.try_sh_outside(&line).expect("root may write rules");
    };
    rule(FRONTS[0], "REJECT --reject-with tcp-reset");
    goes_over_to(&world, &kubectl, FRONTS[1]);
    // The next takes connections and answers nobody.
    fronts[1].hush();
    goes_over_to(&world, &kubectl, FRONTS[2]);
    // The last loses every packet. The addresses that the cluster itself tells are left.
    rule(FRONTS[2], "DROP");
    goes_over_to(&world, &kubectl, PORT);

    assert_eq!(ready_since(&kubectl), since, "the cluster has held the node for lost");
    is_as_before(&world, &kubectl, &before);
    assert!(windlass.daemon().runs());
}
