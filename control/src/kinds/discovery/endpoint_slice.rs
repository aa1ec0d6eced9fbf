//! EndpointSlice. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set};

use crate::{
    apiserver::{
        Strategy,
        types::{Definition, Generation, Resource, VersionSpec},
        validation::{
            errors::{Errors, list, text},
            names,
        },
    },
    kinds::{
        shared::{
            cells::{self, first_three},
            endpoints::{PROTOCOLS, validate_address},
            tables::{AGE, column, named},
        },
        types,
    },
};

/// Upstream's limits on one slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("discovery.k8s.io", "endpointslices", "EndpointSlice", EndpointSlice);
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("discovery.k8s.io/v1", "EndpointSlice"));
    let columns = vec![
        column("AddressType", "Kind of addresses."),
        column("Ports", "Ports."),
        column("Endpoints", "Addresses."),
        AGE,
    ];
    v1.table = named(columns, |object, age| {
        vec![object["addressType"].clone(), json!(slice_ports(object)), json!(slice_addresses(object)), json!(age)]
    });
    Definition::single(resource, v1)
}

fn slice_ports(object: &Value) -> String {
    let all: Vec<String> = object["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|p| p["port"].as_i64().map_or_else(|| "*".to_owned(), |n| n.to_string()))
        .collect();
    if object["ports"].is_null() || all.is_empty() { "<unset>".to_owned() } else { first_three(&all) }
}

fn slice_addresses(object: &Value) -> String {
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    let all: Vec<String> = endpoints
        .flat_map(|e| e["addresses"].as_array().into_iter().flatten())
        .map(|a| cells::text(a).to_owned())
        .collect();
    if all.is_empty() { "<unset>".to_owned() } else { first_three(&all) }
}

#[derive(Debug)]
struct EndpointSlice;

impl Strategy for EndpointSlice {
    fn counts_metadata(&self, new: &Value, old: &Value) -> bool {
        new["labels"] != old["labels"]
    }

    fn default(&self, object: &mut Map<String, Value>) {
        items(object, "ports").for_each(|port| {
            set(port, "protocol", json!("TCP"));
            set(port, "name", json!(""));
        });
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
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
                    _ => validate_address(&field, address, errors),
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

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        if new["addressType"] != old["addressType"] {
            errors.invalid("addressType", &new["addressType"], "field is immutable");
        }
    }
}
