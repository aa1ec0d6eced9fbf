use serde_json::json;

use super::*;

fn service(value: serde_json::Value) -> Option<Service> {
    Service::of(&serde_json::from_value(value).unwrap())
}

#[test]
fn old_spellings_of_addresses_are_read() {
    assert_eq!(parse_ip("172.30.0.041").unwrap().to_string(), "172.30.0.41");
    assert_eq!(parse_ip("::ffff:1.2.3.4").unwrap().to_string(), "1.2.3.4");
    assert_eq!(Cidr::parse(" 203.0.113.000/025").unwrap().to_string(), "203.0.113.0/25");
    for bad in ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4 ", "-1.2.3.4", "fd00::g"] {
        assert_eq!(parse_ip(bad), None, "{bad}");
    }
    assert_eq!(Cidr::parse("::ffff:192.0.2.7/120").unwrap().to_string(), "192.0.2.0/24");
    assert_eq!(Cidr::parse("::ffff:192.0.2.0/24").unwrap().to_string(), "::/24");
    for bad in ["::ffff:192.0.2.0/129", "1.2.3.4", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/+8", "fd00::/129"] {
        assert_eq!(Cidr::parse(bad), None, "{bad}");
    }
}

#[test]
fn ranges_contain_addresses_of_their_family() {
    let has = |c: &str, ip: &str| Cidr::parse(c).unwrap().contains(&parse_ip(ip).unwrap());
    assert!(has("10.0.0.0/8", "10.255.0.1") && has("0.0.0.0/0", "1.2.3.4") && has("fd00:10::/64", "fd00:10::9"));
    assert!(!has("10.0.0.0/8", "11.0.0.1") && !has("::/0", "1.2.3.4") && !has("1.2.3.4/32", "1.2.3.5"));
    let loops = |c: &str| Cidr::parse(c).unwrap().covers_loopback();
    assert!(
        loops("127.0.0.1/32") && loops("0.0.0.0/0") && loops("127.0.0.0/8") && !loops("10.0.0.0/8") && loops("::1/128")
    );
}

#[test]
fn services_without_rules_are_left_out() {
    let meta = json!({"name": "a", "namespace": "n"});
    let ports = json!([{"port": 80}]);
    assert!(service(json!({"metadata": meta, "spec": {"clusterIP": "None", "ports": ports}})).is_none());
    assert!(service(json!({"metadata": meta, "spec": {"ports": ports}})).is_none());
    let external = json!({"type": "ExternalName", "clusterIP": "172.30.0.1", "ports": ports});
    assert!(service(json!({"metadata": meta, "spec": external})).is_none());
    let labels = json!({"service.kubernetes.io/service-proxy-name": "x"});
    let foreign =
        json!({"metadata": {"name": "a", "labels": labels}, "spec": {"clusterIP": "172.30.0.1", "ports": ports}});
    assert!(service(foreign).is_none());
}

#[test]
fn names_that_would_end_a_line_of_rules_are_left_out() {
    let with = |name: &str, port: &str| {
        service(json!({"metadata": {"name": name, "namespace": "ns"},
            "spec": {"clusterIP": "172.30.0.1", "ports": [{"name": port, "port": 80}, {"name": "b", "port": 81}]}}))
        .map(|found| found.ports.len())
    };
    assert_eq!(with("svc", "a"), Some(2));
    assert_eq!(with("svc", "a\n-A INPUT -j ACCEPT"), Some(1));
    assert_eq!(with("svc\n-A INPUT -j ACCEPT", "a"), None);
    assert_eq!(with("s v\"c", "a"), None);
}

#[test]
fn a_service_becomes_a_compact_value() {
    let found = service(json!({
        "metadata": {"name": "svc", "namespace": "ns"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "172.30.0.041", "clusterIPs": ["172.30.0.041", "fd00:172::41"],
            "externalIPs": ["192.168.099.022", "nonsense"], "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000,
            "sessionAffinity": "ClientIP", "loadBalancerSourceRanges": [" 203.0.113.0/25", "10.0.0.0/8"],
            "ports": [{"name": "p80", "port": 80, "nodePort": 3001}, {"name": "dns", "port": 53, "protocol": "UDP"},
                      {"name": "bad", "port": 0}, {"name": "odd", "port": 7, "protocol": "QUIC"}]
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "1.2.3.004"}, {"ip": "5.6.7.8", "ipMode": "Proxy"}, {"hostname": "h"}, {"ip": "9.10.11.12", "ipMode": "VIP"}]}}
    }))
    .unwrap();
    assert_eq!(found.cluster_ip(Family::V6).unwrap().to_string(), "fd00:172::41");
    assert_eq!(found.ports.iter().map(|p| p.full_name.to_string()).collect::<Vec<_>>(), ["ns/svc:p80", "ns/svc:dns"]);
    assert_eq!(found.lb_ips, [parse_ip("1.2.3.4").unwrap(), parse_ip("9.10.11.12").unwrap()]);
    assert_eq!(found.external_ips, [parse_ip("192.168.99.22").unwrap()]);
    assert_eq!((found.affinity, found.health_check_node_port), (Some(10_800), 30_000));
    assert!(found.has_udp() && found.externally_accessible(&found.ports[0], Family::V6, true));
    assert_eq!(found.source_ranges.of_family(Family::V4).unwrap().len(), 2);
}

/// A Service must not redirect what programs on the node send to its loopback device.
#[test]
fn services_have_no_special_addresses() {
    let found = service(json!({
        "metadata": {"name": "svc", "namespace": "ns"},
        "spec": {"type": "LoadBalancer", "clusterIP": "172.30.0.1", "ports": [{"port": 6443}],
            "externalIPs": ["127.0.0.1", "0.0.0.0", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1", "192.0.2.1"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}, {"ip": "::"}, {"ip": "192.0.2.2"}]}}
    }))
    .unwrap();
    assert_eq!(found.external_ips, [parse_ip("192.0.2.1").unwrap()]);
    assert_eq!(found.lb_ips, [parse_ip("192.0.2.2").unwrap()]);
}

/// An old annotation restricts as the field does; an unreadable one admits no client.
#[test]
fn source_ranges_are_those_of_the_field_or_the_annotation() {
    let with = |annotation: &str, field: serde_json::Value| {
        let annotations = json!({"service.beta.kubernetes.io/load-balancer-source-ranges": annotation});
        let spec = json!({"type": "LoadBalancer", "clusterIP": "172.30.0.1", "ports": [{"port": 80}],
            "loadBalancerSourceRanges": field});
        let object = json!({"metadata": {"name": "a", "namespace": "n", "annotations": annotations}, "spec": spec});
        let ranges = service(object).unwrap().source_ranges.of_family(Family::V4);
        ranges.map(|ranges| ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(with("", json!(null)), None);
    assert_eq!(with("10.0.0.0/8,192.0.2.7/32", json!([])).unwrap(), ["10.0.0.0/8", "192.0.2.7/32"]);
    assert_eq!(with("10.0.0.0/8", json!(["192.0.2.0/24"])).unwrap(), ["192.0.2.0/24"]);
    assert!(with("", json!(["203.0.113.7"])).unwrap().is_empty());
}

fn slice(name: &str, kind: &str, endpoints: serde_json::Value) -> objects::EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": "svc"}},
        "addressType": kind, "endpoints": endpoints,
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}, {"port": 81}, {"name": "x", "port": 0}]
    }))
    .unwrap()
}

#[test]
fn endpoints_of_several_slices_are_one_sorted_list() {
    let mut model = Model::default();
    let object = json!({"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.1", "ports": [{"port": 80}]}});
    let object: objects::Service = serde_json::from_value(object).unwrap();
    assert!(model.put_service(&object) && !model.put_service(&object));
    let leaving = json!({"ready": false, "serving": true, "terminating": true});
    model.put_slice(
        &slice("s1", "IPv4", json!([{"addresses": ["10.2.2.2"]}, {"addresses": ["10.2.2.3"], "conditions": leaving}])),
        "n1",
    );
    model.put_slice(
        &slice(
            "s2",
            "IPv4",
            json!([{"addresses": ["10.2.2.22"], "nodeName": "n1"}, {"addresses": ["10.2.2.3"]},
                                    {"addresses": ["10.2.2.2"], "conditions": leaving}, {"addresses": ["fd00::1"]}]),
        ),
        "n1",
    );
    model.put_slice(&slice("s3", "FQDN", json!([{"addresses": ["a.b"]}])), "n1");
    let port = model.service("ns/svc").unwrap().ports[0].clone();
    let found = model.endpoints("ns/svc", &port, Family::V4);
    let text: Vec<(String, bool, bool)> = found.iter().map(|e| (e.address(), e.terminating, e.local)).collect();
    let expected = [("10.2.2.22:80", false, true), ("10.2.2.2:80", false, false), ("10.2.2.3:80", false, false)];
    assert_eq!(text, expected.map(|(a, t, l)| (a.to_owned(), t, l)));
    assert!(model.endpoints("ns/svc", &port, Family::V6).is_empty());

    model.take_changes();
    assert!(!model.put_slice(&slice("s3", "FQDN", json!([])), "n1"));
    assert!(model.delete_slice(&slice("s1", "IPv4", json!([]))) && model.is_dirty());
    assert!(!model.delete_slice(&slice("s1", "IPv4", json!([]))));
    assert!(model.retain_slices(&BTreeSet::new()) && model.retain_services(&BTreeSet::new()));
    assert_eq!(model.services().count(), 0);
    assert_eq!(model.take_changes().services.map(|of| of.len()), [1, 0]);
}

/// A family that a change does not concern is not notified.
#[test]
fn changes_are_of_the_families_that_they_concern() {
    let service = |ips: &[&str], policy: &str| -> objects::Service {
        let object = json!({"metadata": {"name": "svc", "namespace": "ns"}, "spec": {
            "clusterIP": ips[0], "clusterIPs": ips, "internalTrafficPolicy": policy, "ports": [{"port": 80}]}});
        serde_json::from_value(object).unwrap()
    };
    let mut model = Model::default();
    let changed = |model: &mut Model| {
        let changes = model.take_changes();
        Family::BOTH.map(|family| !changes.of(family).is_empty())
    };
    for (ips, policy, concerned) in [
        (&["172.30.0.1"][..], "Cluster", [true, false]),
        (&["172.30.0.1"], "Local", [true, false]),
        (&["172.30.0.1", "fd00:172::1"], "Local", [true, true]),
        (&["172.30.0.1", "fd00:172::1"], "Local", [false, false]),
        (&["172.30.0.1"], "Local", [true, true]),
        (&["fd00:172::1"], "Local", [true, true]),
        (&["fd00:172::1"], "Cluster", [false, true]),
    ] {
        model.put_service(&service(ips, policy));
        assert_eq!(changed(&mut model), concerned, "{ips:?} {policy}");
    }
    model.put_slice(&slice("s1", "IPv4", json!([{"addresses": ["10.2.2.2"]}])), "n1");
    assert_eq!(changed(&mut model), [true, false]);
    model.put_slice(&slice("s2", "IPv6", json!([{"addresses": ["fd00::2"]}])), "n1");
    assert_eq!(changed(&mut model), [false, true]);
    model.delete_slice(&slice("s2", "IPv6", json!([])));
    assert_eq!(changed(&mut model), [false, true]);
    model.delete_service(&service(&["fd00:172::1"], "Cluster"));
    assert_eq!(changed(&mut model), [false, true]);
}

fn udp_service(ip: &str, node_port: u16) -> objects::Service {
    let port = json!({"name": "dns", "port": 53, "protocol": "UDP", "nodePort": node_port});
    let object = json!({"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"clusterIP": ip, "ports": [port]}});
    serde_json::from_value(object).unwrap()
}

fn udp_slice(ports: serde_json::Value, endpoints: serde_json::Value) -> objects::EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "s1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "svc"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports
    }))
    .unwrap()
}

/// A controller empties the last slice of a Service, ports included: that still is a change of UDP endpoints.
#[test]
fn udp_entries_go_with_the_last_endpoint_or_the_service() {
    let mut model = Model::default();
    let dns = json!([{"name": "dns", "port": 5353, "protocol": "UDP"}]);
    let endpoints = json!([{"addresses": ["10.2.2.2"]}]);
    // Without the Service, the slice alone decides.
    for (ports, udp) in [(dns.clone(), true), (json!([]), true), (json!([{"name": "dns", "port": 1}]), false)] {
        model.put_slice(&udp_slice(ports, endpoints.clone()), "n1");
        assert_eq!(model.take_changes().udp.map(|of| !of.is_empty()), [udp, false]);
    }
    model.put_service(&udp_service("172.30.0.1", 3001));
    model.put_slice(&udp_slice(dns, endpoints), "n1");
    let changes = model.take_changes();
    assert_eq!((changes.udp.map(|of| of.len()), changes.removed_udp.len()), ([1, 0], 0));
    model.put_slice(&udp_slice(json!([]), json!([])), "n1");
    assert_eq!(model.take_changes().udp.map(|of| of.len()), [1, 0]);

    // What a Service no longer has is remembered until the next read.
    let at = |ip: &str| (Family::V4, UdpFrontend::Address(format!("{ip}:53").parse().unwrap()));
    let port = |n| (Family::V4, UdpFrontend::NodePort(n));
    model.put_service(&udp_service("172.30.0.2", 3001));
    assert_eq!(model.take_changes().removed_udp, BTreeSet::from([at("172.30.0.1")]));
    model.delete_service(&udp_service("172.30.0.2", 3001));
    let changes = model.take_changes();
    assert_eq!(changes.removed_udp, BTreeSet::from([at("172.30.0.2"), port(3001)]));
    assert_eq!((changes.udp.map(|of| of.len()), model.udp_services().count()), ([1, 0], 0));
    assert_eq!(model.take_changes(), Changes::default());
}

/// However slices come and go, each address and port counts once.
#[test]
fn endpoints_are_counted_once_for_each_address() {
    let mut model = Model::default();
    let object = json!({"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.1", "ports": [{"port": 80}]}});
    model.put_service(&serde_json::from_value(object).unwrap());
    let addresses = |from: u8| (from..from + 3).map(|n| json!({"addresses": [format!("10.2.2.{n}")]})).collect();
    for (name, from, count) in [("s1", 1, 3), ("s2", 3, 5), ("s3", 9, 8), ("s2", 1, 6)] {
        model.put_slice(&slice(name, "IPv4", addresses(from)), "n1");
        model.take_changes();
        assert_eq!(model.endpoint_count(Family::V4), count, "{name}");
    }
    model.delete_slice(&slice("s1", "IPv4", json!([])));
    model.take_changes();
    assert_eq!(model.endpoint_count(Family::V4), 6);
}

/// Packets for an endpoint on the loopback device reach what listens there for the node alone.
#[test]
fn only_the_api_has_endpoints_on_the_loopback_device() {
    let endpoints = |namespace: &str, name: &str| {
        let listed = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "10.2.2.2"].map(|ip| json!({"addresses": [ip]}));
        let object: objects::EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": listed, "ports": [{"name": "", "port": 80}]
        }))
        .unwrap();
        Slice::of(&object, "n1").unwrap().endpoints.iter().map(|e| e.ip.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(endpoints("default", "kubernetes"), ["127.0.0.1", "10.2.2.2"]);
    for (namespace, name) in [("default", "kubernetes-x"), ("ns", "kubernetes")] {
        assert_eq!(endpoints(namespace, name), ["10.2.2.2"]);
    }
}

/// A slice whose label changes, as in a blue-green switch, never belongs to two Services.
#[test]
fn a_slice_is_of_the_service_that_its_label_names_now() {
    let slice = |service: Option<&str>| -> objects::EndpointSlice {
        let labels = service.map_or(json!({}), |name| json!({"kubernetes.io/service-name": name}));
        serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "ns", "labels": labels}, "addressType": "IPv4",
            "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]}),
        )
        .unwrap()
    };
    let service = |name: &str, ip: &str| -> objects::Service {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}}),
        )
        .unwrap()
    };
    let mut model = Model::default();
    model.put_service(&service("blue", "172.30.0.1"));
    model.put_service(&service("green", "172.30.0.2"));
    let endpoints =
        |model: &Model, id: &str| model.endpoints(id, &model.service(id).unwrap().ports[0], Family::V4).len();
    for (label, blue, green, changed) in
        [(Some("blue"), 1, 0, 1), (Some("green"), 0, 1, 2), (None, 0, 0, 1), (Some("blue"), 1, 0, 1)]
    {
        model.take_changes();
        assert!(model.put_slice(&slice(label), "n1"));
        assert!(!model.put_slice(&slice(label), "n1"), "again");
        assert_eq!((endpoints(&model, "ns/blue"), endpoints(&model, "ns/green")), (blue, green), "{label:?}");
        assert_eq!(model.take_changes().services.map(|of| of.len()), [changed, 0], "{label:?}");
    }
    // Deleted under another label than it was known by.
    assert!(model.delete_slice(&slice(Some("green"))));
    assert_eq!(endpoints(&model, "ns/blue"), 0);
}
