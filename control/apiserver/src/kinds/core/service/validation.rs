//! What is refused in a Service (upstream: `ValidateServiceCreate`, `ValidateServiceUpdate`). Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::{Value, json};
use windlass_kit::addresses::SOURCE_RANGES_ANNOTATION;

use super::{
    allocator::needs_health_check,
    families::{self, is_headless},
    prepare::is_externally_accessible,
};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors, PORT, list, text},
        names,
    },
    kinds::shared::{
        endpoints::{PROTOCOLS, validate_special},
        field::Field,
    },
};

const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";

/// Refuses a Service; what stood in `old` already may stay, where upstream lets it.
pub(super) fn validate(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    // Upstream allocates first, and reports no other errors if that fails.
    let before = errors.0.len();
    families::validate(object, old, errors);
    if errors.0.len() > before {
        return;
    }
    if let Some(old) = old {
        families::validate_changes(object, old, errors);
        class_unchanged(object, old, errors);
        health_check_unchanged(&object["spec"], &old["spec"], errors);
    }
    topology_annotations(object, errors);
    let spec = Field::root(object).at("spec");
    let kind = spec.at("type").text();
    ports_and_name(&spec, kind, errors);
    names::labels(spec.at("selector").value, "spec.selector", errors);
    affinity(&spec, errors);
    external_ips(&spec, old, errors);
    spec.at("type").required_one_of(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    numbers(&spec, kind, errors);
    source_ranges(object, old, kind, errors);
    let allocates = spec.at("allocateLoadBalancerNodePorts");
    if allocates.is_set() && kind != "LoadBalancer" {
        allocates.forbidden(ONLY_BALANCED, errors);
    }
    class(&spec, kind, errors);
    external_traffic(&spec, kind, errors);
    spec.at("internalTrafficPolicy").optional_one_of(&["Cluster", "Local"], errors);
    let distribution = spec.at("trafficDistribution");
    distribution.optional_one_of(&["PreferClose", "PreferSameZone", "PreferSameNode"], errors);
}

fn topology_annotations(object: &Value, errors: &mut Errors) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    let annotations = &object["metadata"]["annotations"];
    let (hints, mode) = (&annotations[HINTS], &annotations[MODE]);
    if hints.is_string() && mode.is_string() && hints != mode {
        let why = format!("must match annotations[{HINTS}] when both are specified");
        errors.invalid(format!("metadata.annotations[{MODE}]"), mode, &why);
    }
}

fn ports_and_name(spec: &Field<'_>, kind: &str, errors: &mut Errors) {
    let (ports, ips) = (spec.at("ports"), spec.at("clusterIPs"));
    if ports.is_empty() && !is_headless(spec) && kind != "ExternalName" {
        ports.required("", errors);
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let first = format!("{}[0]", ips.path);
            errors.invalid(first, &ips.value[0], &format!("may not be set to 'None' for {kind} services"));
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !spec.at(field).is_empty() {
                    spec.at(field).forbidden("may not be set for ExternalName services", errors);
                }
            }
            let name = spec.at("externalName");
            match name.text().strip_suffix('.').unwrap_or_else(|| name.text()) {
                "" => name.required("", errors),
                absolute => errors.unless(&name.path, absolute, names::subdomain(absolute)),
            }
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.at("name");
        if name.is_empty() {
            if ports.len() > 1 {
                name.required("", errors);
            }
        } else {
            name.fits(names::label, errors);
            if !seen.insert(name.text()) {
                name.duplicate(errors);
            }
        }
        one_port(&port, errors);
    }
}

fn one_port(port: &Field<'_>, errors: &mut Errors) {
    let number = port.at("port");
    if !names::is_port(number.value) {
        errors.invalid(number.path, &json!(number.value.as_i64().unwrap_or(0)), PORT);
    }
    port.at("protocol").required_one_of(PROTOCOLS, errors);
    // It is the number of the port, unless it is set.
    let target = port.at("targetPort");
    if target.is_set() {
        names::port_or_name(&target.path, target.value, errors);
    } else {
        errors.invalid(target.path, &json!(0), PORT);
    }
    let protocol = port.at("appProtocol");
    if protocol.is_set() {
        protocol.label_key(errors);
    }
}

fn affinity(spec: &Field<'_>, errors: &mut Errors) {
    spec.at("sessionAffinity").required_one_of(&["ClientIP", "None"], errors);
    let timeout = spec.below("sessionAffinityConfig.clientIP.timeoutSeconds");
    if spec.at("sessionAffinity").text() == "ClientIP" && timeout.number().is_some_and(|n| !(1..=86400).contains(&n)) {
        timeout.invalid("must be greater than 0 and less than 86400", errors);
    }
}

fn external_ips(spec: &Field<'_>, old: Option<&Value>, errors: &mut Errors) {
    let existing = old.map(|old| Field::root(old).below("spec.externalIPs").texts()).unwrap_or_default();
    for ip in spec.at("externalIPs").items() {
        match names::ip(ip.text()).filter(|_| !existing.contains(&ip.text())) {
            Some(why) => ip.invalid(&why, errors),
            None => validate_special(&ip.path, ip.text(), false, errors),
        }
    }
}

/// What each number may be once only.
fn numbers(spec: &Field<'_>, kind: &str, errors: &mut Errors) {
    let node_port = |port: &Field<'_>| port.at("nodePort").number().filter(|number| *number != 0);
    for port in spec.at("ports").items().filter(|port| kind == "ClusterIP" && node_port(port).is_some()) {
        port.at("nodePort").forbidden("may not be used when `type` is 'ClusterIP'", errors);
    }
    let mut seen = BTreeMap::new();
    for port in spec.at("ports").items() {
        let here = port.at("port").number();
        let before = node_port(&port).and_then(|number| seen.insert((port.at("protocol").text(), number), here));
        let taken = before.is_some();
        match kind {
            // Upstream's allocator is asked before, which gives one number for each port.
            "LoadBalancer" | "NodePort" if taken && before != Some(here) => {
                port.at("nodePort").invalid("provided port is already allocated", errors);
            }
            _ if taken => port.at("nodePort").duplicate(errors),
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    for port in spec.at("ports").items() {
        let (protocol, number) = (port.at("protocol").text(), port.at("port").number().unwrap_or(0));
        if !seen.insert((protocol, number)) {
            // Upstream writes its internal type, in the order of its fields.
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}",
                json!(protocol)
            );
            errors.push(port.path, Cause::Duplicate, format!("Duplicate value: {shown}"));
        }
    }
}

fn source_ranges(object: &Value, old: Option<&Value>, kind: &str, errors: &mut Errors) {
    let ranges = Field::root(object).below("spec.loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // The name of upstream's internal field.
        const FIELD: &str = "spec.LoadBalancerSourceRanges";
        if kind != "LoadBalancer" {
            errors.forbidden(FIELD, ONLY_BALANCED);
        }
        let before = old.map(|old| Field::root(old).below("spec.loadBalancerSourceRanges").texts());
        let before: Vec<&str> = before.into_iter().flatten().map(str::trim).collect();
        for (at, range) in ranges.texts().into_iter().map(str::trim).enumerate() {
            if !before.contains(&range) {
                errors.unless(format!("{FIELD}[{at}]"), range, names::cidr(range));
            }
        }
        return;
    }
    let annotation =
        |object: &Value| object["metadata"]["annotations"][SOURCE_RANGES_ANNOTATION].as_str().map(str::to_owned);
    let Some(listed) = annotation(object) else { return };
    let field = format!("metadata.annotations[{SOURCE_RANGES_ANNOTATION}]");
    if kind != "LoadBalancer" {
        errors.forbidden(field.as_str(), ONLY_BALANCED);
    }
    if old.and_then(annotation).is_none_or(|before| before != listed) && !listed.trim().is_empty() {
        for range in listed.trim().split(',').map(str::trim) {
            errors.unless(field.as_str(), range, names::cidr(range));
        }
    }
}

/// Another implementation would else take over a balancer that it does not know.
fn class_unchanged(new: &Value, old: &Value, errors: &mut Errors) {
    let (new, old) = (Field::root(new).at("spec"), Field::root(old).at("spec"));
    let both = [&new, &old].iter().all(|spec| spec.at("type").text() == "LoadBalancer");
    if both && new.at("loadBalancerClass").value != old.at("loadBalancerClass").value {
        new.at("loadBalancerClass").invalid("may not change once set", errors);
    }
    class(&new, new.at("type").text(), errors);
}

fn class(spec: &Field<'_>, kind: &str, errors: &mut Errors) {
    let class = spec.at("loadBalancerClass");
    match kind {
        _ if !class.is_set() => {}
        "LoadBalancer" => class.label_key(errors),
        _ => class.forbidden(ONLY_BALANCED, errors),
    }
}

fn external_traffic(spec: &Field<'_>, kind: &str, errors: &mut Errors) {
    let policy = spec.at("externalTrafficPolicy");
    if is_externally_accessible(kind, Some(spec.at("externalIPs").value)) {
        policy.required_one_of(&["Cluster", "Local"], errors);
    } else if !policy.is_empty() {
        policy.invalid("may only be set for externally-accessible services", errors);
    }
    let port = spec.at("healthCheckNodePort");
    // Without a number the service gets one; whether a number can be had is for the allocator to say.
    let Some(number) = port.number().filter(|number| *number != 0) else { return };
    if !needs_health_check(spec.value) {
        port.invalid("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'", errors);
    } else if let Some(why) = names::port_number(number) {
        port.invalid(&why, errors);
    }
}

fn health_check_unchanged(new: &Value, old: &Value, errors: &mut Errors) {
    let port = |spec: &Value| spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if needs_health_check(old) && needs_health_check(new) && port(old) != port(new) {
        errors.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
}

pub(super) fn validate_load_balancer(object: &Value, old: &Value, errors: &mut Errors) {
    let balancer = &object["status"]["loadBalancer"];
    let any = list(balancer, "ingress").next().is_some();
    if any && object["spec"]["type"] != "LoadBalancer" {
        errors.forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    let existing: BTreeSet<&str> =
        list(&old["status"]["loadBalancer"], "ingress").map(|(_, ingress)| text(ingress, "ip")).collect();
    for (at, ingress) in list(balancer, "ingress") {
        let here = format!("status.loadBalancer.ingress[{at}]");
        let (ip, mode, name) = (text(ingress, "ip"), &ingress["ipMode"], text(ingress, "hostname"));
        if ip.is_empty() {
            if !mode.is_null() {
                errors.forbidden(format!("{here}.ipMode"), "may not be specified when `ip` is not set");
            }
        } else {
            if !existing.contains(ip) {
                errors.unless(format!("{here}.ip"), ip, names::ip(ip));
            }
            errors.one_of(format!("{here}.ipMode"), mode, &["Proxy", "VIP"]);
        }
        if !name.is_empty() {
            errors.unless(format!("{here}.hostname"), name, names::subdomain(name));
            if name.parse::<IpAddr>().is_ok() {
                errors.invalid_text(format!("{here}.hostname"), name, "must be a DNS name, not an IP address");
            }
        }
    }
}
