//! What is refused in a Service. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::{Value, json};

use super::allocator::needs_health_check;
use crate::{
    apiserver::validation::{
        errors::{Errors, PORT, list, text},
        names,
    },
    kinds::shared::endpoints::PROTOCOLS,
};

pub(super) fn validate_spec(spec: &Value, errors: &mut Errors) {
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
    health_check(spec, errors);
    service_ports(spec, headless, kind, errors);
}

fn health_check(spec: &Value, errors: &mut Errors) {
    const FIELD: &str = "spec.healthCheckNodePort";
    let port = &spec["healthCheckNodePort"];
    // Without a number the service gets one.
    if port.as_i64().unwrap_or(0) == 0 {
        return;
    }
    // Whether it can be had is for the allocator to say.
    if !needs_health_check(spec) {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid(FIELD, port, why);
    }
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

/// The cluster IP of a service that keeps one is immutable.
pub(super) fn validate_spec_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (was, is) = (text(old, "clusterIP"), text(new, "clusterIP"));
    if new["type"] != "ExternalName" && old["type"] != "ExternalName" && !was.is_empty() && was != is {
        errors.invalid("spec.clusterIPs[0]", &json!([is]), "may not change once set");
    }
    let port = |spec: &Value| spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if needs_health_check(old) && needs_health_check(new) && port(old) != port(new) {
        errors.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
}

pub(super) fn validate_load_balancer(object: &Value, errors: &mut Errors) {
    let balancer = &object["status"]["loadBalancer"];
    let any = list(balancer, "ingress").next().is_some();
    if any && object["spec"]["type"] != "LoadBalancer" {
        errors.forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    for (at, ingress) in list(balancer, "ingress") {
        let here = format!("status.loadBalancer.ingress[{at}]");
        let (ip, mode, name) = (text(ingress, "ip"), &ingress["ipMode"], text(ingress, "hostname"));
        if ip.is_empty() {
            if !mode.is_null() {
                errors.forbidden(format!("{here}.ipMode"), "may not be specified when `ip` is not set");
            }
        } else {
            errors.unless(format!("{here}.ip"), ip, names::ip(ip));
            errors.one_of(format!("{here}.ipMode"), mode, &["Proxy", "VIP"]);
        }
        if name.parse::<IpAddr>().is_ok() {
            errors.invalid_text(format!("{here}.hostname"), name, "must be a DNS name, not an IP address");
        } else if !name.is_empty() {
            errors.unless(format!("{here}.hostname"), name, names::subdomain(name));
        }
    }
}
