//! Endpoints. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set};

use crate::{
    apiserver::{
        Strategy,
        types::{Definition, Resource, VersionSpec},
        validation::{
            errors::{Errors, PORT, list, text},
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

    fn validate(&self, object: &Value, errors: &mut Errors) {
        for (at, subset) in list(object, "subsets") {
            for key in ["addresses", "notReadyAddresses"] {
                for (place, address) in list(subset, key) {
                    validate_address(&format!("subsets[{at}].{key}[{place}].ip"), text(address, "ip"), errors);
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
}
