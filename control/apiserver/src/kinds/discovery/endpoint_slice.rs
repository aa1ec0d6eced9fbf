//! EndpointSlice. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::{
    addresses::{SpecialAddress, is_slice_of_the_api},
    net::{Family, parse_ip},
    objects::pod_defaults::{items, set, set_pointer},
};

use crate::{
    apiserver::{
        Strategy, User,
        pipeline::validation::{
            errors::{Errors, text},
            names::{self, ip_warning},
        },
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, first_three},
            endpoints::{PROTOCOLS, validate_special},
            field::{Field, immutable},
            tables::{AGE, column, named},
        },
        types,
    },
};

/// Upstream's limits on one slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY_LABELS: usize = 16;
const MAX_HINTS: usize = 8;

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
            set_pointer(port, "protocol", json!("TCP"));
            set(port, "name", json!(""));
        });
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validate(object, None, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validate(new, Some(old), errors);
        immutable(new, old, &["addressType"], errors);
    }

    /// The API itself may listen on the loopback device alone; no other writer may direct the cluster there.
    fn validate_writer(&self, new: &Value, old: Option<&Value>, writer: &User, errors: &mut Errors) {
        let changed = old.is_none_or(|old| ["endpoints", "ports"].iter().any(|field| new[field] != old[field]));
        if !is_of_the_api(new) || !changed || writer.is_api_server() {
            return;
        }
        for address in Field::root(new).at("endpoints").items().flat_map(|endpoint| endpoint.at("addresses").items()) {
            if parse_ip(address.text()).and_then(SpecialAddress::of) == Some(SpecialAddress::Loopback) {
                validate_special(&address.path, address.text(), false, errors);
            }
        }
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let slice = Field::root(new);
        let mut told = Vec::new();
        if old.is_none() && slice.at("addressType").text() == "FQDN" {
            told.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        if slice.at("addressType").text() != "FQDN" {
            let addresses = slice.at("endpoints").items().flat_map(|endpoint| endpoint.at("addresses").items());
            told.extend(addresses.filter_map(|address| ip_warning(&address.path, address.text())));
        }
        told
    }
}

fn is_of_the_api(slice: &Value) -> bool {
    let metadata = &slice["metadata"];
    is_slice_of_the_api(text(metadata, "namespace"), text(metadata, "name"))
}

fn validate(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let slice = Field::root(object);
    slice.at("addressType").required_one_of(&["FQDN", "IPv4", "IPv6"], errors);
    ports(&slice.at("ports"), errors);
    // Older servers took what is refused today.
    if old.is_none_or(|old| old["endpoints"] != object["endpoints"]) {
        endpoints(&slice, is_of_the_api(object), errors);
    }
}

fn ports(ports: &Field<'_>, errors: &mut Errors) {
    if ports.len() > MAX_PORTS {
        return errors.too_many(&ports.path, ports.len(), MAX_PORTS);
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.at("name");
        name.optionally_fits(names::label, errors);
        if !seen.insert(name.text()) {
            name.duplicate(errors);
        }
        port.at("protocol").pointer_one_of(PROTOCOLS, errors);
        if port.at("appProtocol").is_set() {
            port.at("appProtocol").label_key(errors);
        }
    }
}

fn endpoints(slice: &Field<'_>, of_the_api: bool, errors: &mut Errors) {
    let (kind, endpoints) = (slice.at("addressType").text(), slice.at("endpoints"));
    if endpoints.len() > MAX_ENDPOINTS {
        return errors.too_many(&endpoints.path, endpoints.len(), MAX_ENDPOINTS);
    }
    for endpoint in endpoints.items() {
        let addresses = endpoint.at("addresses");
        if addresses.is_empty() {
            addresses.required("must contain at least 1 address", errors);
        }
        addresses.max_items(MAX_ADDRESSES, errors);
        for address in addresses.items() {
            one_address(kind, &address, &addresses, of_the_api, errors);
        }
        if endpoint.at("nodeName").is_set() {
            endpoint.at("nodeName").fits(names::subdomain, errors);
        }
        let topology = endpoint.at("deprecatedTopology");
        topology.max_items(MAX_TOPOLOGY_LABELS, errors);
        names::labels(topology.value, &topology.path, errors);
        if endpoint.at("hostname").is_set() {
            endpoint.at("hostname").fits(names::label, errors);
        }
        hints(&endpoint.at("hints"), errors);
    }
}

fn one_address(kind: &str, address: &Field<'_>, all: &Field<'_>, of_the_api: bool, errors: &mut Errors) {
    let text = address.text();
    let (wanted, found) = match kind {
        "IPv4" => ("IPv4", names::ip(text)),
        "IPv6" => ("IPv6", names::canonical_ip(text)),
        "FQDN" => return domain_name(address, errors),
        _ => return,
    };
    if let Some(why) = found {
        return errors.invalid_text(&address.path, text, &why);
    }
    if parse_ip(text).is_some_and(|ip| Family::of(&ip).name() != wanted) {
        errors.invalid_text(&all.path, text, &format!("must be an {wanted} address"));
    }
    validate_special(&address.path, text, of_the_api, errors);
}

fn domain_name(address: &Field<'_>, errors: &mut Errors) {
    if address.is_empty() {
        return address.required("", errors);
    }
    let absolute = address.text().strip_suffix('.').unwrap_or_else(|| address.text());
    let segments = "should be a domain with at least two segments separated by dots";
    let one = || (!absolute.contains('.')).then(|| segments.to_owned());
    if let Some(why) = names::subdomain(absolute).or_else(one) {
        return errors.invalid_text(&address.path, absolute, &why);
    }
    if let Some((label, why)) = absolute.split('.').find_map(|label| Some((label, names::label(label)?))) {
        errors.invalid_text(&address.path, label, &why);
    }
}

fn hints(hints: &Field<'_>, errors: &mut Errors) {
    for list in ["forZones", "forNodes"].map(|list| hints.at(list)) {
        if list.len() > MAX_HINTS {
            return errors.too_many(&list.path, list.len(), MAX_HINTS);
        }
        let mut seen = BTreeSet::new();
        for name in list.items().map(|hint| hint.at("name")) {
            if !seen.insert(name.text()) {
                errors.duplicate(&name.path, &json!(name.text()));
            }
            name.fits(if list.path.name() == "forZones" { names::label_value } else { names::subdomain }, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(namespace: &str, name: &str, kind: &str, address: &str) -> Value {
        json!({"metadata": {"namespace": namespace, "name": name}, "addressType": kind,
            "endpoints": [{"addresses": [address]}], "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]})
    }

    fn told(errors: &Errors) -> Vec<String> {
        errors.0.iter().map(ToString::to_string).collect()
    }

    /// The API may listen on the loopback device alone; others must not lead the cluster there, by no name of a slice.
    #[test]
    fn only_the_api_server_writes_an_endpoint_on_the_loopback_device() {
        let wanted = "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range \
                      (127.0.0.0/8, ::1/128)";
        for (namespace, name, writer, refused) in [
            ("default", "kubernetes", User::api_server(), false),
            ("default", "kubernetes", User::internal("admin"), true),
            ("default", "kubernetes-2", User::api_server(), true),
            ("n", "kubernetes", User::api_server(), true),
        ] {
            let new = slice(namespace, name, "IPv4", "127.0.0.1");
            let mut errors = Errors::default();
            EndpointSlice.validate_create(&new, &mut errors);
            EndpointSlice.validate_writer(&new, None, &writer, &mut errors);
            let found = told(&errors);
            assert_eq!(found, if refused { vec![wanted] } else { vec![] }, "{namespace}/{name} by {}", writer.name);
        }
        // Who labels the slice of the API does not write its endpoints.
        let (old, mut new) = (slice("default", "kubernetes", "IPv4", "127.0.0.1"), Value::Null);
        new.clone_from(&old);
        new["metadata"]["labels"] = json!({"a": "b"});
        let mut errors = Errors::default();
        EndpointSlice.validate_writer(&new, Some(&old), &User::internal("admin"), &mut errors);
        assert_eq!(told(&errors), Vec::<String>::new());
        new["ports"][0]["port"] = json!(5432);
        EndpointSlice.validate_writer(&new, Some(&old), &User::internal("admin"), &mut errors);
        assert_eq!(told(&errors), [wanted]);
    }

    #[test]
    fn addresses_are_of_the_type_of_the_slice() {
        for (kind, address, wanted) in [
            ("IPv6", "fd00::1", ""),
            ("IPv6", "fd00:0::1", "must be in canonical form (\"fd00::1\")"),
            ("IPv6", "::1", "may not be in the loopback range"),
            ("IPv6", "fe80::1", "may not be in the link-local range"),
            ("IPv6", "ff02::1", "may not be in the link-local multicast range"),
            ("IPv6", "::", "may not be unspecified (::)"),
            ("IPv6", "10.0.0.1", "must be an IPv6 address"),
            ("FQDN", "a.example", ""),
            ("FQDN", "a.example.", ""),
            ("FQDN", "a", "should be a domain with at least two segments separated by dots"),
            ("FQDN", "A.example", "a lowercase RFC 1123 subdomain must consist of"),
            ("FQDN", "", "Required value"),
        ] {
            let mut errors = Errors::default();
            EndpointSlice.validate_create(&slice("n", "s", kind, address), &mut errors);
            let found = told(&errors);
            assert!(
                if wanted.is_empty() { found.is_empty() } else { found[0].contains(wanted) },
                "{address}: {found:?}"
            );
        }
    }
}
