//! Defaults of a Service, and what an update of one keeps and drops. Pure.
//!
//! If an update changes the type, unchanged fields of the previous type are dropped; setting them is an error.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items, set, set_pointer};

use super::{allocator::needs_health_check, families};

/// Whether nodes answer for a service at addresses or ports of their own.
pub(super) fn is_externally_accessible(kind: &str, external_ips: Option<&Value>) -> bool {
    match kind {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => external_ips.and_then(Value::as_array).is_some_and(|ips| !ips.is_empty()),
        _ => false,
    }
}

pub(super) fn set_defaults(object: &mut Map<String, Value>) {
    let spec = child(object, "spec");
    set(spec, "type", json!("ClusterIP"));
    set(spec, "sessionAffinity", json!("None"));
    match spec["sessionAffinity"].as_str() {
        Some("None") => drop(spec.remove("sessionAffinityConfig")),
        Some("ClientIP") => {
            set(child(child(spec, "sessionAffinityConfig"), "clientIP"), "timeoutSeconds", json!(10800));
        }
        _ => {}
    }
    let kind = spec["type"].as_str().unwrap_or("").to_owned();
    if matches!(&*kind, "ClusterIP" | "LoadBalancer" | "NodePort") {
        set_pointer(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    if is_externally_accessible(&kind, spec.get("externalIPs")) {
        set(spec, "externalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", json!(true));
        let status = object.get_mut("status").and_then(Value::as_object_mut);
        let balancer = status.and_then(|status| status.get_mut("loadBalancer")).and_then(Value::as_object_mut);
        for ingress in balancer.into_iter().flat_map(|balancer| items(balancer, "ingress")) {
            if ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
                set_pointer(ingress, "ipMode", json!("VIP"));
            }
        }
    }
    for port in items(child(object, "spec"), "ports") {
        set(port, "protocol", json!("TCP"));
        // A port without a number is refused by its validation.
        let Some(number) = port.get("port").filter(|number| !number.is_null()).cloned() else { continue };
        if port.get("targetPort").is_none_or(|t| t == &json!(0) || t == &json!("") || t.is_null()) {
            port.insert("targetPort".to_owned(), number);
        }
    }
}

fn text<'a>(service: &'a Value, field: &str) -> &'a str {
    service["spec"][field].as_str().unwrap_or("")
}

/// A field that is set: neither missing nor an empty text, an empty list or 0.
fn value<'a>(service: &'a Value, field: &str) -> Option<&'a Value> {
    let value = &service["spec"][field];
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        number => number == &json!(0),
    };
    (!is_empty).then_some(value)
}

fn is_unset(service: &Value, field: &str) -> bool {
    value(service, field).is_none()
}

fn same(new: &Value, old: &Value, field: &str) -> bool {
    value(new, field) == value(old, field)
}

fn keep(new: &mut Value, old: &Value, field: &str) {
    if let Some(value) = old["spec"].get(field) {
        new["spec"][field] = value.clone();
    }
}

fn remove(service: &mut Value, field: &str) {
    service["spec"].as_object_mut().map(|spec| spec.remove(field));
}

/// Clients that know of one address alone write `clusterIP` without `clusterIPs`.
pub(super) fn normalize_cluster_ips(new: &mut Value, old: Option<&Value>) {
    let first = text(new, "clusterIP").to_owned();
    let Some(old) = old else {
        if !first.is_empty() && is_unset(new, "clusterIPs") {
            new["spec"]["clusterIPs"] = json!([first]);
        }
        return;
    };
    let before = text(old, "clusterIP");
    if is_unset(new, "clusterIPs") && first == before {
        keep(new, old, "clusterIPs");
    }
    if first != before && same(new, old, "clusterIPs") {
        if first.is_empty() {
            remove(new, "clusterIPs");
        } else {
            new["spec"]["clusterIPs"] = json!([first]);
        }
    }
}

fn has_cluster_ip(service: &Value) -> bool {
    text(service, "type") != "ExternalName"
}

fn has_node_ports(service: &Value) -> bool {
    matches!(text(service, "type"), "LoadBalancer" | "NodePort")
}

fn node_ports(service: &Value) -> BTreeSet<i64> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.filter_map(|port| port["nodePort"].as_i64().filter(|number| *number != 0)).collect()
}

/// A service keeps its allocated values when an update leaves them out.
fn patch_allocated_values(new: &mut Value, old: &Value) {
    if has_cluster_ip(old) && has_cluster_ip(new) {
        for field in ["clusterIP", "clusterIPs"] {
            if is_unset(new, field) && !is_unset(old, field) {
                keep(new, old, field);
            }
        }
    }
    if has_node_ports(old) && has_node_ports(new) {
        let used: BTreeSet<i64> = node_ports(old).intersection(&node_ports(new)).copied().collect();
        let name = |port: &Value| port["name"].as_str().unwrap_or("").to_owned();
        let before = old["spec"]["ports"].as_array().into_iter().flatten();
        let before: BTreeMap<String, i64> =
            before.map(|port| (name(port), port["nodePort"].as_i64().unwrap_or(0))).collect();
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
            let own = before.get(&name(port)).copied().filter(|own| *own != 0 && !used.contains(own));
            if let Some(own) = own.filter(|_| port["nodePort"].as_i64().unwrap_or(0) == 0) {
                port["nodePort"] = json!(own);
            }
        }
    }
    let both_check = needs_health_check(&old["spec"]) && needs_health_check(&new["spec"]);
    if both_check && new["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0) == 0 {
        keep(new, old, "healthCheckNodePort");
    }
}

/// Drops what the new type of a service does not have, unless the update has changed it too.
fn drop_type_dependent_fields(new: &mut Value, old: &Value) {
    if has_cluster_ip(old) && !has_cluster_ip(new) {
        if same(new, old, "clusterIP") && same(new, old, "clusterIPs") {
            remove(new, "clusterIP");
            remove(new, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(new, old, field) {
                remove(new, field);
            }
        }
    }
    if has_node_ports(old) && !has_node_ports(new) && node_ports(old).is_superset(&node_ports(new)) {
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
    }
    let checks = (needs_health_check(&old["spec"]), needs_health_check(&new["spec"]));
    if checks == (true, false) && same(new, old, "healthCheckNodePort") {
        remove(new, "healthCheckNodePort");
    }
    if text(old, "type") == "LoadBalancer" && text(new, "type") != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, old, field) {
                remove(new, field);
            }
        }
    }
    let outside = |service: &Value| is_externally_accessible(text(service, "type"), service["spec"].get("externalIPs"));
    if outside(old) && !outside(new) && same(new, old, "externalTrafficPolicy") {
        remove(new, "externalTrafficPolicy");
    }
    if text(new, "type") != "LoadBalancer" {
        new["status"]["loadBalancer"] = json!({});
    }
}

pub(super) fn for_create(new: &mut Value) {
    normalize_cluster_ips(new, None);
    families::fill(new, None);
}

pub(super) fn for_update(new: &mut Value, old: &Value) {
    patch_allocated_values(new, old);
    normalize_cluster_ips(new, Some(old));
    drop_type_dependent_fields(new, old);
    families::fill(new, Some(old));
}
