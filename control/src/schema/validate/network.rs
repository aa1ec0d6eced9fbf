//! Services and their endpoints. Addresses and node ports are given out elsewhere.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    errors::{Errors, PORT, list, text},
    names,
};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

pub(super) fn service(spec: &Value, errors: &mut Errors) {
    errors.one_of("spec.type", &spec["type"], &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    errors.one_of("spec.sessionAffinity", &spec["sessionAffinity"], &["ClientIP", "None"]);
    errors.optional_one_of("spec.internalTrafficPolicy", &spec["internalTrafficPolicy"], &["Cluster", "Local"]);
    names::labels(&spec["selector"], "spec.selector", errors);
    let kind = text(spec, "type");
    let headless = spec["clusterIP"] == "None";
    if headless && matches!(kind, "NodePort" | "LoadBalancer") {
        errors.invalid(
            "spec.clusterIPs[0]",
            &spec["clusterIP"],
            &format!("may not be set to 'None' for {kind} services"),
        );
    }
    if kind == "ExternalName" {
        let name = text(spec, "externalName").trim_end_matches('.');
        if name.is_empty() {
            errors.required("spec.externalName", "");
        } else {
            errors.unless("spec.externalName", name, names::subdomain(&name.to_lowercase()));
        }
    } else if !headless && !text(spec, "clusterIP").is_empty() {
        errors.unless("spec.clusterIPs[0]", text(spec, "clusterIP"), names::ip(text(spec, "clusterIP")));
    }
    let timeout = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if timeout.as_i64().is_some_and(|n| !(1..=86400).contains(&n)) {
        errors.invalid(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            timeout,
            "must be greater than 0 and less than 86400",
        );
    }
    for (at, ip) in list(spec, "externalIPs") {
        let ip = ip.as_str().unwrap_or_default();
        errors.unless(format!("spec.externalIPs[{at}]"), ip, names::ip(ip));
    }
    errors.optional_one_of("spec.externalTrafficPolicy", &spec["externalTrafficPolicy"], &["Cluster", "Local"]);
    service_ports(spec, headless, kind, errors);
}

fn service_ports(spec: &Value, headless: bool, kind: &str, errors: &mut Errors) {
    let count = list(spec, "ports").count();
    if count == 0 && !headless && kind != "ExternalName" {
        errors.required("spec.ports", "");
    }
    let (mut port_names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (at, port) in list(spec, "ports") {
        let here = format!("spec.ports[{at}]");
        let (name, protocol) = (text(port, "name"), text(port, "protocol"));
        if name.is_empty() {
            if count > 1 {
                errors.required(format!("{here}.name"), "");
            }
        } else if let Some(why) = names::label(name) {
            errors.invalid_text(format!("{here}.name"), name, &why);
        } else if !port_names.insert(name) {
            errors.duplicate(format!("{here}.name"), &port["name"]);
        }
        if !names::is_port(&port["port"]) {
            errors.invalid(format!("{here}.port"), &port["port"], PORT);
        } else if !numbers.insert((port["port"].as_i64(), protocol)) {
            errors.duplicate(&here, &serde_json::json!({"port": port["port"], "protocol": protocol}));
        }
        errors.one_of(format!("{here}.protocol"), &port["protocol"], PROTOCOLS);
        if kind != "ExternalName" || !port["targetPort"].is_null() {
            names::port_or_name(&format!("{here}.targetPort"), &port["targetPort"], errors);
        }
        if let Some(node_port) = port["nodePort"].as_i64().filter(|n| *n != 0) {
            if matches!(kind, "ClusterIP" | "ExternalName") {
                errors.forbidden(format!("{here}.nodePort"), &format!("may not be used when `type` is '{kind}'"));
            } else if !names::is_port(&port["nodePort"]) {
                errors.invalid(format!("{here}.nodePort"), &port["nodePort"], PORT);
            } else if !node_ports.insert((node_port, protocol)) {
                errors.duplicate(format!("{here}.nodePort"), &port["nodePort"]);
            }
        }
    }
}

/// The address of a service that keeps one is for life.
pub(super) fn change(new: &Value, old: &Value, errors: &mut Errors) {
    let (was, is) = (text(old, "clusterIP"), text(new, "clusterIP"));
    if new["type"] != "ExternalName" && old["type"] != "ExternalName" && !was.is_empty() && was != is {
        errors.invalid("spec.clusterIPs[0]", &new["clusterIP"], "may not change once set");
    }
}

pub(super) fn endpoints(object: &Value, errors: &mut Errors) {
    for (at, subset) in list(object, "subsets") {
        for key in ["addresses", "notReadyAddresses"] {
            for (place, address) in list(subset, key) {
                address_of(&format!("subsets[{at}].{key}[{place}].ip"), text(address, "ip"), errors);
            }
        }
        let count = list(subset, "ports").count();
        for (place, port) in list(subset, "ports") {
            let here = format!("subsets[{at}].ports[{place}]");
            match text(port, "name") {
                "" if count > 1 => errors.required(format!("{here}.name"), ""),
                "" => {}
                name => errors.unless(format!("{here}.name"), name, names::label(name)),
            }
            if !names::is_port(&port["port"]) {
                errors.invalid(format!("{here}.port"), &port["port"], PORT);
            }
            errors.one_of(format!("{here}.protocol"), &port["protocol"], PROTOCOLS);
        }
    }
}

/// Upstream's limits on one slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;

pub(super) fn endpoint_slice(object: &Value, errors: &mut Errors) {
    let kind = text(object, "addressType");
    if kind.is_empty() {
        errors.required("addressType", "");
    } else {
        errors.one_of("addressType", &object["addressType"], &["FQDN", "IPv4", "IPv6"]);
    }
    let count = list(object, "endpoints").count();
    if count > MAX_ENDPOINTS {
        errors.too_many("endpoints", count, MAX_ENDPOINTS);
    }
    for (at, endpoint) in list(object, "endpoints") {
        let field = format!("endpoints[{at}].addresses");
        match list(endpoint, "addresses").count() {
            0 => errors.required(&field, "must contain at least 1 address"),
            many if many > MAX_ADDRESSES => errors.too_many(&field, many, MAX_ADDRESSES),
            _ => {}
        }
        for (place, address) in list(endpoint, "addresses") {
            let (field, address) = (format!("{field}[{place}]"), address.as_str().unwrap_or_default());
            match (kind, address.parse::<std::net::IpAddr>()) {
                ("FQDN", _) => errors.unless(field, address, names::subdomain(address)),
                ("IPv4", Ok(ip)) if !ip.is_ipv4() => {
                    errors.invalid_text(field, address, "must be a valid IPv4 address")
                }
                ("IPv6", Ok(ip)) if !ip.is_ipv6() => {
                    errors.invalid_text(field, address, "must be a valid IPv6 address")
                }
                _ => address_of(&field, address, errors),
            }
        }
    }
    let count = list(object, "ports").count();
    if count > MAX_PORTS {
        errors.too_many("ports", count, MAX_PORTS);
    }
    let mut seen = BTreeSet::new();
    for (at, port) in list(object, "ports") {
        let name = text(port, "name");
        if !name.is_empty() {
            errors.unless(format!("ports[{at}].name"), name, names::label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(format!("ports[{at}].name"), &port["name"]);
        }
        errors.one_of(format!("ports[{at}].protocol"), &port["protocol"], PROTOCOLS);
    }
}

/// An address that packets can be sent to. Loopback is allowed, unlike upstream: the API itself may listen there.
fn address_of(field: &str, address: &str, errors: &mut Errors) {
    match address.parse::<std::net::IpAddr>() {
        Err(_) => errors.unless(field, address, names::ip(address)),
        Ok(ip) if ip.is_unspecified() => errors.invalid_text(field, address, "may not be unspecified (0.0.0.0 or ::)"),
        Ok(ip) if ip.is_multicast() => {
            errors.invalid_text(field, address, "may not be in the multicast range (224.0.0.0/4, ff00::/8)")
        }
        Ok(std::net::IpAddr::V4(ip)) if ip.is_link_local() => {
            errors.invalid_text(field, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
        }
        Ok(_) => {}
    }
}
