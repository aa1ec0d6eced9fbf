//! Ingress. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::{Value, json};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::{
            errors::{Cause, Errors},
            names,
        },
        types::{Definition, Generation, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, joined},
            field::Field,
            load_balancer_warnings,
            tables::{AGE, column, named},
            tolerance,
        },
        types,
    },
};

/// The annotation that named the class before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const NOT_AN_IP: &str = "must be a DNS name, not an IP address";
/// What a path may not hold, and how it may not end.
const BAD_PARTS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDS: [&str; 2] = ["/..", "/."];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("networking.k8s.io", "ingresses", "Ingress", Ingress);
    resource.short_names = vec!["ing".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("networking.k8s.io/v1", "Ingress"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Class", "Its class."),
        column("Hosts", "Names of hosts."),
        column("Address", "Where it is reached."),
        column("Ports", "Ports."),
        AGE,
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let spec = &object["spec"];
    let ingress = object["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let addresses: BTreeSet<&str> = ingress
        .filter_map(|one| [&one["ip"], &one["hostname"]].into_iter().map(cells::text).find(|text| !text.is_empty()))
        .collect();
    let ports = if spec["tls"].as_array().is_none_or(Vec::is_empty) { "80" } else { "80, 443" };
    vec![
        json!(spec["ingressClassName"].as_str().unwrap_or("<none>")),
        json!(hosts(&spec["rules"])),
        json!(joined(addresses.into_iter().map(str::to_owned))),
        json!(ports),
        json!(age),
    ]
}

/// The hosts of the first rules.
fn hosts(rules: &Value) -> String {
    const SHOWN: usize = 3;
    let (mut shown, mut more) = (Vec::new(), false);
    let rules = rules.as_array().map_or(&[][..], Vec::as_slice);
    for host in rules.iter().map(|rule| cells::text(&rule["host"])) {
        more |= shown.len() == SHOWN;
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => shown.join(","),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN),
    }
}

#[derive(Debug)]
struct Ingress;

impl Strategy for Ingress {
    fn tolerates(&self, object: &Value, error: &FieldError) -> Option<Tolerance> {
        // The path of a rule, whose host upstream did not look at where it is a wildcard.
        let rule = error.field.strip_prefix("spec.rules[").and_then(|rest| rest.split_once(']'));
        let at = rule.and_then(|(at, rest)| at.parse::<usize>().ok().filter(|_| rest.starts_with(".http")));
        let host = at.and_then(|at| object["spec"]["rules"][at]["host"].as_str()).unwrap_or("");
        let wildcard = host.contains('*').then_some(Tolerance::Rule("rules of wildcards"));
        wildcard.or_else(|| tolerance::rule_of(error, &[("spec.tls.secretName", "secrets of TLS")]))
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        const CLASS: &str = "kubernetes.io/ingress.class";
        let has_class = new["metadata"]["annotations"][CLASS].is_string() && new["spec"]["ingressClassName"].is_null();
        let why = || format!("annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead");
        (old.is_none() && has_class).then(why).into_iter().collect()
    }

    fn status_warnings(&self, new: &Value, _old: &Value) -> Vec<String> {
        load_balancer_warnings(new)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        let (backend, rules) = (spec.at("defaultBackend"), spec.at("rules"));
        if rules.is_empty() && !backend.is_set() {
            let why = "either `defaultBackend` or `rules` must be specified";
            errors.push("spec", Cause::Invalid, format!("Invalid value: {}: {why}", rules.value));
        }
        if backend.is_set() {
            validate_backend(&backend, errors);
        }
        for rule in rules.items() {
            validate_rule(&rule, errors);
        }
        for tls in spec.at("tls").items() {
            tls.at("hosts").items().for_each(|host| host.fits(host_name(host.text()), errors));
            tls.at("secretName").optionally_fits(names::subdomain, errors);
        }
        let class = spec.at("ingressClassName");
        if class.is_set() {
            class.fits(names::subdomain, errors);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        let (annotation, class) =
            (&object["metadata"]["annotations"][CLASS_ANNOTATION], &object["spec"]["ingressClassName"]);
        if !annotation.is_null() && !class.is_null() && annotation != class {
            let why = "must match `ingressClassName` when both are specified";
            errors.invalid(format!("annotations.{CLASS_ANNOTATION}"), annotation, why);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        for ingress in Field::root(new).below("status.loadBalancer.ingress").items() {
            let (ip, host) = (ingress.at("ip"), ingress.at("hostname"));
            ip.optionally_fits(names::ip, errors);
            if !host.text().is_empty() {
                host.fits(names::subdomain, errors);
                not_an_ip(&host, errors);
            }
        }
    }
}

/// The check of a host that may begin with `*`.
fn host_name(host: &str) -> fn(&str) -> Option<String> {
    if host.contains('*') { names::wildcard_subdomain } else { names::subdomain }
}

fn not_an_ip(host: &Field<'_>, errors: &mut Errors) {
    if host.text().parse::<IpAddr>().is_ok() {
        host.invalid(NOT_AN_IP, errors);
    }
}

fn validate_rule(rule: &Field<'_>, errors: &mut Errors) {
    let host = rule.at("host");
    if !host.text().is_empty() {
        not_an_ip(&host, errors);
        host.fits(host_name(host.text()), errors);
    }
    let http = rule.at("http");
    if !http.is_set() {
        return;
    }
    if http.at("paths").is_empty() {
        http.at("paths").required("", errors);
    }
    for path in http.at("paths").items() {
        if !path.at("pathType").is_set() {
            path.at("pathType").required("pathType must be specified", errors);
            continue;
        }
        validate_path(&path, errors);
        validate_backend(&path.at("backend"), errors);
    }
}

fn validate_path(rule: &Field<'_>, errors: &mut Errors) {
    let (kind, path) = (rule.at("pathType"), rule.at("path"));
    match kind.text() {
        "Exact" | "Prefix" => {
            if !path.text().starts_with('/') {
                errors.invalid_text(&path.path, path.text(), "must be an absolute path");
            }
            if path.text().is_empty() {
                return;
            }
            for part in BAD_PARTS.into_iter().filter(|part| path.text().contains(part)) {
                path.invalid(&format!("must not contain '{part}'"), errors);
            }
            for end in BAD_ENDS.into_iter().filter(|end| path.text().ends_with(end)) {
                path.invalid(&format!("cannot end with '{end}'"), errors);
            }
        }
        "ImplementationSpecific" => {
            if !path.text().is_empty() && !path.text().starts_with('/') {
                path.invalid("must be an absolute path", errors);
            }
        }
        _ => kind.one_of(&["Exact", "ImplementationSpecific", "Prefix"], errors),
    }
}

fn validate_backend(backend: &Field<'_>, errors: &mut Errors) {
    let (resource, service) = (backend.at("resource"), backend.at("service"));
    let refuse = |why: &str, errors: &mut Errors| errors.invalid_text(&backend.path, "", why);
    match (resource.is_set(), service.is_set()) {
        (true, true) => refuse("cannot set both resource and service backends", errors),
        (true, false) => {
            if resource.at("apiGroup").is_set() {
                resource.at("apiGroup").fits(names::subdomain, errors);
            }
            resource.at("kind").named(names::path_segment, errors);
            resource.at("name").named(names::path_segment, errors);
        }
        (false, true) => {
            service.at("name").named(names::label, errors);
            let (name, number) = (service.below("port.name"), service.below("port.number"));
            let (named, numbered) = (!name.text().is_empty(), number.number().unwrap_or(0) != 0);
            match (named, numbered) {
                (true, true) => refuse("cannot set both port name & port number", errors),
                (true, false) => name.fits(names::port_name, errors),
                (false, true) => {
                    if let Some(why) = number.number().and_then(names::port_number) {
                        number.invalid(&why, errors);
                    }
                }
                (false, false) => backend.required("port name or number is required", errors),
            }
        }
        (false, false) => refuse("resource or service backend is required", errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_the_first_rules() {
        for (rules, shown) in [
            (json!([]), "*"),
            (json!([{"host": "a"}, {"host": "b"}]), "a,b"),
            (json!([{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}, {"host": "e"}]), "a,b,c + 2 more..."),
        ] {
            assert_eq!(hosts(&rules), shown);
        }
    }
}
