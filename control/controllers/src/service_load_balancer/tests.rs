use serde_json::{Value, json};

use super::{
    plan::{NodeFacts, PortKey, Step, Surroundings, decide, host_ports, nodes_with_endpoints, ports},
    *,
};
use crate::runtime::CachedNode;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A load balancer of port 80 from that minute on.
fn service(name: &str, minute: u32, spec: Value) -> Service {
    let mut whole = json!({"type": "LoadBalancer", "ports": [{"port": 80}], "ipFamilies": ["IPv4"]});
    spec.as_object().into_iter().flatten().for_each(|(field, value)| whole[field] = value.clone());
    from(
        json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z")},
        "spec": whole}),
    )
}

fn published(mut service: Service) -> Service {
    service.status = from(json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}));
    service
}

fn node(name: &str, addresses: &[(&str, &str)]) -> CachedNode {
    let addresses: Vec<Value> = addresses.iter().map(|(kind, ip)| json!({"type": kind, "address": ip})).collect();
    from(json!({"metadata": {"name": name},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}}))
}

fn facts(nodes: &[CachedNode]) -> Vec<NodeFacts> {
    nodes.iter().map(NodeFacts::of).collect()
}

fn addresses(step: Step) -> Vec<String> {
    let Step::Publish(found) = step else { panic!("{step:?}") };
    assert!(found.iter().all(|ingress| ingress.ip_mode.as_deref() == Some("VIP")));
    found.into_iter().filter_map(|ingress| ingress.ip).collect()
}

fn pod(port: Value) -> CachedPod {
    from(
        json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {"nodeName": "n1", "containers": [{"ports": [port]}]}}),
    )
}

#[test]
fn a_load_balancer_has_the_addresses_of_its_nodes() {
    let mut not_ready = node("n3", &[("InternalIP", "192.0.2.3")]);
    not_ready.status = from(json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.3"}],
        "conditions": [{"type": "Ready", "status": "Unknown"}]}));
    let mut excluded = node("n4", &[("InternalIP", "192.0.2.4")]);
    excluded.metadata.labels =
        Some([("node.kubernetes.io/exclude-from-external-load-balancers".to_owned(), String::new())].into());
    let nodes = [
        node("n2", &[("Hostname", "n2"), ("InternalIP", "192.0.2.2"), ("InternalIP", "2001:db8::2")]),
        node("n1", &[("InternalIP", "192.0.2.1"), ("ExternalIP", "198.51.100.1"), ("InternalIP", "2001:db8::1")]),
        not_ready,
        excluded,
    ];
    let around = || Surroundings { nodes: facts(&nodes), ..Surroundings::default() };
    for (spec, wanted) in [
        (json!({}), &["192.0.2.2", "198.51.100.1"][..]),
        (json!({"loadBalancerClass": "windlass.io/node-addresses"}), &["192.0.2.2", "198.51.100.1"]),
        (json!({"allocateLoadBalancerNodePorts": false}), &["192.0.2.2", "198.51.100.1"]),
        (json!({"ipFamilies": ["IPv6"]}), &["2001:db8::1", "2001:db8::2"]),
        (json!({"ipFamilies": ["IPv6", "IPv4"]}), &["2001:db8::1", "2001:db8::2", "192.0.2.2", "198.51.100.1"]),
    ] {
        assert_eq!(addresses(decide(&service("web", 0, spec.clone()), &around())), wanted, "{spec}");
    }
    let local = service("web", 0, json!({"externalTrafficPolicy": "Local"}));
    let none = Step::Pend("UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer".to_owned());
    assert_eq!(decide(&local, &around()), none);
    let on = |names: &[&str]| Surroundings { local: names.iter().map(|n| (*n).to_owned()).collect(), ..around() };
    assert_eq!(addresses(decide(&local, &on(&["n1", "n3"]))), ["198.51.100.1"]);
}

#[test]
fn others_services_are_left_alone_and_former_ones_cleared() {
    let nodes = [node("n1", &[("InternalIP", "192.0.2.1")])];
    let around = || Surroundings { nodes: facts(&nodes), ..Surroundings::default() };
    let mut going = published(service("web", 0, json!({})));
    going.metadata.deletion_timestamp = from(json!("2026-01-01T00:00:00Z"));
    for (service, wanted) in [
        (service("web", 0, json!({"loadBalancerClass": "metallb.io/layer2"})), Step::Leave),
        (service("web", 0, json!({"type": "ClusterIP"})), Step::Leave),
        (published(service("web", 0, json!({"type": "NodePort"}))), Step::Clear),
        (going, Step::Leave),
    ] {
        assert_eq!(decide(&service, &around()), wanted, "{service:?}");
    }
}

#[test]
fn a_port_is_that_of_the_oldest_service() {
    let nodes = [node("n1", &[("InternalIP", "192.0.2.1")])];
    let step = |service: &Service, others: &[&Service], pods: &[&CachedPod]| {
        let around = Surroundings {
            nodes: facts(&nodes),
            services: others.to_vec(),
            pods: pods.to_vec(),
            reserved: &[6443],
            ..Surroundings::default()
        };
        match decide(service, &around) {
            Step::Pend(reason, message) => format!("{reason}: {message}"),
            other => addresses(other).join(" "),
        }
    };
    const FAILED: &str = "SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer:";
    let (old, new) = (service("old", 1, json!({})), service("new", 2, json!({})));
    assert_eq!(step(&old, &[&new], &[]), "192.0.2.1");
    assert_eq!(
        step(&new, &[&old], &[]),
        format!("{FAILED} port 80/TCP is already used by load balancer service shop/old")
    );
    // As old: by name.
    assert_eq!(step(&service("a", 1, json!({})), &[&old], &[]), "192.0.2.1");
    for other in [
        service("old", 1, json!({"ports": [{"port": 80, "protocol": "UDP"}]})),
        service("old", 1, json!({"ports": [{"port": 81}]})),
        service("old", 1, json!({"ipFamilies": ["IPv6"]})),
        service("old", 1, json!({"loadBalancerClass": "metallb.io/layer2"})),
        service("old", 1, json!({"type": "NodePort"})),
    ] {
        assert_eq!(step(&new, &[&other], &[]), "192.0.2.1", "{other:?}");
    }
    let with_port = pod(json!({"containerPort": 8080, "hostPort": 80}));
    assert_eq!(step(&new, &[], &[&with_port]), format!("{FAILED} port 80/TCP is a host port of pod shop/p"));
    assert_eq!(step(&published(new.clone()), &[], &[&with_port]), "192.0.2.1", "the service was first");
    let api = service("api", 1, json!({"ports": [{"port": 443}, {"port": 6443}]}));
    assert_eq!(step(&api, &[], &[]), format!("{FAILED} port 6443/TCP is used by the node itself"));
}

#[test]
fn a_pod_has_its_host_ports_while_it_runs_on_a_node() {
    let key = |number, protocol| BTreeSet::from([PortKey::new(number, Some(protocol))]);
    assert_eq!(host_ports(&pod(json!({"containerPort": 1, "hostPort": 53, "protocol": "UDP"}))), key(53, "UDP"));
    assert_eq!(host_ports(&pod(json!({"containerPort": 1, "hostPort": 80, "hostIP": "192.0.2.1"}))), key(80, "TCP"));
    let none = BTreeSet::new();
    assert_eq!(host_ports(&pod(json!({"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.1"}))), none);
    assert_eq!(host_ports(&pod(json!({"containerPort": 1}))), none);
    let mut ended = pod(json!({"containerPort": 1, "hostPort": 80}));
    ended.status = from(json!({"phase": "Succeeded"}));
    assert_eq!(host_ports(&ended), none);
    let two = service("s", 1, json!({"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}));
    assert_eq!(ports(&two).iter().map(ToString::to_string).collect::<Vec<_>>(), ["53/TCP", "53/UDP"]);
}

#[test]
fn a_node_with_a_ready_endpoint_takes_local_traffic() {
    let slice: EndpointSlice = from(json!({"addressType": "IPv4", "endpoints": [
        {"addresses": ["10.0.0.1"], "nodeName": "n1", "conditions": {"ready": true}},
        {"addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": {"ready": false}},
        {"addresses": ["10.0.0.3"], "nodeName": "n3"},
        {"addresses": ["10.0.0.4"]}]}));
    assert_eq!(nodes_with_endpoints([&slice]).into_iter().collect::<Vec<_>>(), ["n1", "n3"]);
}
