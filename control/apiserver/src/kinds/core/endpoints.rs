//! Endpoints. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{
            errors::{Errors, PORT},
            names::{self, ip_warning},
        },
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, first_three},
            endpoints::{PROTOCOLS, validate_special},
            field::Field,
            tables::{AGE, column, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "endpoints", "Endpoints", Endpoints);
    resource.short_names = vec!["ep".into()];
    resource.create_on_update = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Endpoints"));
    v1.deprecation_warning =
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned());
    v1.table = named(vec![column("Endpoints", "Addresses and ports."), AGE], |object, age| {
        vec![json!(endpoints(object)), json!(age)]
    });
    Definition::single(resource, v1)
}

fn endpoints(object: &Value) -> String {
    let mut all = Vec::new();
    for subset in object["subsets"].as_array().into_iter().flatten() {
        for address in subset["addresses"].as_array().into_iter().flatten() {
            let ip = cells::text(&address["ip"]);
            let ports = subset["ports"].as_array();
            match ports.filter(|p| !p.is_empty()) {
                Some(ports) => all.extend(ports.iter().map(|p| {
                    if ip.contains(':') { format!("[{ip}]:{}", p["port"]) } else { format!("{ip}:{}", p["port"]) }
                })),
                None => all.push(ip.to_owned()),
            }
        }
    }
    first_three(&all)
}

#[derive(Debug)]
struct Endpoints;

impl Strategy for Endpoints {
    fn default(&self, object: &mut Map<String, Value>) {
        for subset in items(object, "subsets") {
            items(subset, "ports").for_each(|port| set(port, "protocol", json!("TCP")));
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validate_subsets(object, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        // Older servers took what is refused today.
        if new["subsets"] != old["subsets"] {
            validate_subsets(new, errors);
        }
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let subsets = Field::root(new).at("subsets");
        let lists = subsets.items().flat_map(|subset| ["addresses", "notReadyAddresses"].map(|key| subset.at(key)));
        let addresses = lists.flat_map(|list| list.items().collect::<Vec<_>>());
        addresses.filter_map(|address| ip_warning(&address.at("ip").path, address.at("ip").text())).collect()
    }
}

fn validate_subsets(object: &Value, errors: &mut Errors) {
    for subset in Field::root(object).at("subsets").items() {
        let (ready, not_ready, ports) = (subset.at("addresses"), subset.at("notReadyAddresses"), subset.at("ports"));
        if ready.is_empty() && not_ready.is_empty() {
            subset.required("must specify `addresses` or `notReadyAddresses`", errors);
        }
        for address in ready.items().chain(not_ready.items()) {
            let ip = address.at("ip");
            ip.fits(names::ip, errors);
            address.at("hostname").optionally_fits(names::label, errors);
            if address.at("nodeName").is_set() {
                address.at("nodeName").fits(names::subdomain, errors);
            }
            validate_special(&ip.path, ip.text(), false, errors);
        }
        for port in ports.items() {
            let name = port.at("name");
            if name.is_empty() && ports.len() > 1 {
                name.required("", errors);
            }
            name.optionally_fits(names::label, errors);
            let number = port.at("port");
            if !names::is_port(number.value) {
                errors.invalid(number.path, &json!(number.value.as_i64().unwrap_or(0)), PORT);
            }
            port.at("protocol").required_one_of(PROTOCOLS, errors);
            if port.at("appProtocol").is_set() {
                port.at("appProtocol").label_key(errors);
            }
        }
    }
}
