//! NetworkPolicy. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items, set_pointer};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::Field,
            selector,
            tables::{AGE, column, named},
            tolerance,
        },
        types,
    },
};

const NOT_WITHIN: &str = "must be a strict subset of `cidr`";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("networking.k8s.io", "networkpolicies", "NetworkPolicy", NetworkPolicy);
    resource.short_names = vec!["netpol".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("networking.k8s.io/v1", "NetworkPolicy"));
    v1.table = named(vec![column("Pod-Selector", "Labels of its pods."), AGE], |object, age| {
        vec![json!(selector::shown(&object["spec"]["podSelector"])), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct NetworkPolicy;

impl Strategy for NetworkPolicy {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        let is_range = error.field.ends_with(".ipBlock.cidr") || error.field.contains(".ipBlock.except[");
        // Whether one range is within another does not depend on its notation.
        let range = (is_range && !error.detail.ends_with(NOT_WITHIN)).then_some(Tolerance::Value);
        range.or_else(|| tolerance::label_values(error, &["spec.podSelector"]))
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let spec = Field::root(new).at("spec");
        let mut told = Vec::new();
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            for peer in spec.at(direction).items().flat_map(|rule| rule.at(peers).items()) {
                let block = peer.at("ipBlock");
                for range in std::iter::once(block.at("cidr")).chain(block.at("except").items()) {
                    told.extend(names::cidr_warning(&range.path, range.text()));
                }
            }
        }
        told
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        for direction in ["ingress", "egress"] {
            for rule in items(spec, direction) {
                items(rule, "ports").for_each(|port| set_pointer(port, "protocol", json!("TCP")));
            }
        }
        let some = |field: &str| spec.get(field).and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if !some("policyTypes") {
            let both = some("egress");
            let types = if both { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".to_owned(), types);
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        selector::validate(&spec.at("podSelector"), errors);
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            for rule in spec.at(direction).items() {
                rule.at("ports").items().for_each(|port| validate_port(&port, errors));
                rule.at(peers).items().for_each(|peer| validate_peer(&peer, errors));
            }
        }
        let types = spec.at("policyTypes");
        if types.len() > 2 {
            return types.invalid("may not specify more than two policyTypes", errors);
        }
        types.items().for_each(|kind| kind.one_of(&["Ingress", "Egress"], errors));
    }
}

fn validate_port(rule: &Field<'_>, errors: &mut Errors) {
    rule.at("protocol").optional_one_of(&["TCP", "UDP", "SCTP"], errors);
    let (port, end) = (rule.at("port"), rule.at("endPort"));
    match port.value {
        Value::Null => {
            if end.is_set() {
                end.invalid("may not be specified when `port` is not specified", errors);
            }
        }
        Value::String(_) => {
            if end.is_set() {
                end.invalid("may not be specified when `port` is non-numeric", errors);
            }
            port.fits(names::port_name, errors);
        }
        _ => {
            let number = port.number().unwrap_or(0);
            if let Some(why) = names::port_number(number) {
                port.invalid(&why, errors);
            }
            let Some(last) = end.number() else { return };
            if last < number {
                // Upstream writes the port.
                errors.invalid(&end.path, port.value, "must be greater than or equal to `port`");
            }
            if let Some(why) = names::port_number(last) {
                end.invalid(&why, errors);
            }
        }
    }
}

fn validate_peer(peer: &Field<'_>, errors: &mut Errors) {
    let (pods, namespaces, block) = (peer.at("podSelector"), peer.at("namespaceSelector"), peer.at("ipBlock"));
    for labels in [&pods, &namespaces].into_iter().filter(|labels| labels.is_set()) {
        selector::validate(labels, errors);
    }
    if block.is_set() {
        validate_block(&block, errors);
    }
    match [&pods, &namespaces, &block].into_iter().filter(|field| field.is_set()).count() {
        0 => peer.required("must specify a peer", errors),
        2.. if block.is_set() => peer.forbidden("may not specify both ipBlock and another peer", errors),
        _ => {}
    }
}

fn validate_block(block: &Field<'_>, errors: &mut Errors) {
    let cidr = block.at("cidr");
    if cidr.text().is_empty() {
        return cidr.required("", errors);
    }
    cidr.fits(names::cidr, errors);
    let Some((whole, length)) = names::parse_cidr(cidr.text()) else { return };
    for except in block.at("except").items() {
        except.fits(names::cidr, errors);
        let Some((part, part_length)) = names::parse_cidr(except.text()) else { continue };
        let within = part.is_ipv4() == whole.is_ipv4()
            && part_length > length
            && names::masked(part, length) == names::masked(whole, length);
        if !within {
            except.invalid(NOT_WITHIN, errors);
        }
    }
}
