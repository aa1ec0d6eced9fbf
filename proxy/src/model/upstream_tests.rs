//! Services and EndpointSlices of upstream's own tests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_fixtures::facts::{json_of, rows, text_of, value_of};

use super::{Endpoint, Family, Model, Port, Protocol, Service, objects};

static SERVICES: &str = include_str!("../../../facts/proxy_services.tsv");
static ENDPOINTS: &str = include_str!("../../../facts/proxy_endpoints.tsv");

/// Endpoints by `namespace/name:port:protocol`.
type Found = BTreeMap<String, Value>;

fn slice(object: &Value) -> objects::EndpointSlice {
    serde_json::from_value(object.clone()).unwrap()
}

fn family(name: &str) -> Family {
    if name == "IPv6" { Family::V6 } else { Family::V4 }
}

fn told(endpoint: &Endpoint) -> Value {
    let Endpoint { local, ready, serving, terminating, .. } = endpoint;
    json!([endpoint.address(), local, ready, serving, terminating])
}

/// All endpoints in the slices of a model, of one Service or of all.
fn endpoints(model: &Model, family: Family, of: Option<&str>) -> Found {
    let mut found = Found::new();
    for (service, held) in model.slices.iter().filter(|(service, _)| of.is_none_or(|of| ***service == *of)) {
        for port in held.values().flat_map(|slice| slice.ports.iter()) {
            let (name, protocol) = (port.name.clone(), port.protocol);
            let key = format!("{service}:{name}:{}", protocol.lower().to_uppercase());
            let port = Port { name, full_name: "".into(), protocol, port: 1, node_port: 0 };
            let mut all: Vec<Value> = model.endpoints(service, &port, family).iter().map(told).collect();
            all.sort_by_key(Value::to_string);
            if !all.is_empty() {
                found.insert(key, Value::Array(all));
            }
        }
    }
    found
}

fn expected(cell: &str) -> Found {
    let mut found: Found = value_of(cell);
    for all in found.values_mut() {
        all.as_array_mut().unwrap().sort_by_key(Value::to_string);
    }
    found
}

/// A model with slices, whose changes were taken.
fn with(slices: &Value, node: &str) -> Model {
    let mut model = Model::default();
    for object in slices.as_array().unwrap() {
        model.put_slice(&slice(object), node);
    }
    model.take_changes();
    model
}

fn change(model: &mut Model, change: &Value, node: &str) {
    let object = slice(&change[1]);
    match change[0].as_str() {
        Some("put") => model.put_slice(&object, node),
        _ => model.delete_slice(&object),
    };
}

fn local_ready(model: &Model) -> BTreeMap<String, usize> {
    let mut local = BTreeMap::<String, BTreeSet<String>>::new();
    for (key, all) in endpoints(model, Family::V4, None) {
        let service = key.split(':').next().unwrap().to_owned();
        for endpoint in all.as_array().unwrap().iter().filter(|e| e[1] == true && e[2] == true) {
            let address = endpoint[0].as_str().unwrap().rsplit_once(':').unwrap().0;
            local.entry(service.clone()).or_default().insert(address.to_owned());
        }
    }
    local.into_iter().map(|(service, all)| (service, all.len())).collect()
}

fn holds(row: &[&str]) {
    match *row {
        ["TestEndpointsMapFromESC" | "TestEndpointInfoByServicePort", name, node, slices, service, found] => {
            let model = with(&json_of(slices), &text_of(node));
            assert_eq!(endpoints(&model, Family::V4, Some(service)), expected(found), "{name}");
        }
        ["TestEsDataChanged", name, before, after, differs] => {
            let mut model = with(&json!([json_of(before)]), "");
            let changed = model.put_slice(&slice(&json_of(after)), "");
            assert_eq!(changed, differs == "true", "{name}");
        }
        ["TestUpdateEndpointsMap", name, node, slices, changes, before, after, services, local] => {
            let mut model = with(&json_of(slices), node);
            assert_eq!(endpoints(&model, Family::V4, None), expected(before), "{name}, before");
            for one in json_of(changes).as_array().unwrap() {
                change(&mut model, one, node);
            }
            let changed: BTreeSet<String> =
                model.take_changes().of(Family::V4).iter().map(|id| id.to_string()).collect();
            assert_eq!(json!(changed), json_of(services), "{name}");
            assert_eq!(endpoints(&model, Family::V4, None), expected(after), "{name}");
            assert_eq!(json!(local_ready(&model)), json_of(local), "{name}");
        }
        ["TestEndpointSliceUpdate", name, of, node, slices, one, service, changed, after] => {
            let mut model = with(&json_of(slices), node);
            change(&mut model, &json_of(one), node);
            let found = model.take_changes().of(family(of)).contains(service);
            assert_eq!(found, changed == "true", "{name}");
            if after != "null" {
                assert_eq!(endpoints(&model, family(of), Some(service)), expected(after), "{name}");
            }
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn endpoints_are_followed_as_upstreams_tests_say() {
    let seen = rows(ENDPOINTS).inspect(|row| holds(row)).count();
    assert!(seen > 40, "{seen}");
}

/// A port of a family as the table has it.
fn port(service: &Service, port: &Port, family: Family) -> Option<Value> {
    let cluster_ip = service.cluster_ip(family)?;
    let of_family = |ips: &[std::net::IpAddr]| -> Vec<String> {
        ips.iter().filter(|ip| Family::of(ip) == family).map(ToString::to_string).collect()
    };
    let ranges = service.source_ranges.of_family(family).unwrap_or_default();
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let protocol = match port.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    let Service { health_check_node_port: health, external_ips, lb_ips, .. } = service;
    let (external, balanced) = (of_family(external_ips), of_family(lb_ips));
    Some(json!([*port.name, cluster_ip.to_string(), port.port, protocol, health, external, balanced, ranges]))
}

/// Addresses have one spelling here.
fn spelled(ports: &mut Value) {
    let respell = |value: &mut Value| {
        if let Some(ip) = value.as_str().and_then(super::parse_ip) {
            *value = json!(ip.to_string());
        }
    };
    for port in ports.as_array_mut().unwrap() {
        respell(&mut port[1]);
        for list in [5, 6] {
            port[list].as_array_mut().unwrap().iter_mut().for_each(respell);
        }
    }
}

#[test]
fn services_have_rules_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(SERVICES) {
        let (name, of, object, mut expected) = (row[1], family(row[2]), json_of(row[3]), json_of(row[4]));
        spelled(&mut expected);
        let service = Service::of(&serde_json::from_value(object).unwrap());
        let found = service.iter().flat_map(|service| service.ports.iter().filter_map(|p| port(service, p, of)));
        assert_eq!(Value::Array(found.collect()), expected, "{name}");
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}
