//! What is odd or on its way out in a pod or its template (upstream: `pkg/api/pod/warnings.go`). Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    containers, overlaps,
    scheduling::{PREFERRED, REQUIRED},
    security_profiles,
};
use crate::{
    apiserver::pipeline::validation::names,
    kinds::shared::{field::Field, fractional_bytes, node_selector, old_volumes, volume_claims},
};

const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Annotations that do nothing any more.
const DEAD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

/// Warnings about a pod or a template, in upstream's order.
pub(crate) fn warnings(metadata: &Field<'_>, spec: &Field<'_>, template: bool) -> Vec<String> {
    let mut found = Vec::new();
    nodes(spec, &mut found);
    let annotations = metadata.at("annotations");
    for (key, why) in DEAD_ANNOTATIONS.iter().filter(|(key, _)| !annotations.value[*key].is_null()) {
        found.push(format!("{}[{key}]: {why}", annotations.path));
    }
    volumes(spec, &mut found);
    host_aliases(&spec.at("hostAliases"), &mut found);
    pull_secrets(&spec.at("imagePullSecrets"), &mut found);
    for resource in ["memory", "ephemeral-storage"] {
        found.extend(fractional_bytes(&spec.at("overhead"), resource));
    }
    found.extend(security_profiles::pod_warnings(annotations.value, spec, &metadata.path.to_string()));
    for container in containers(spec) {
        found.extend(security_profiles::container_warnings(
            annotations.value,
            spec,
            &container,
            &metadata.path.to_string(),
            template,
        ));
        for resource in ["memory", "ephemeral-storage"] {
            for list in ["limits", "requests"] {
                found.extend(fractional_bytes(&container.at("resources").at(list), resource));
            }
        }
        variables(&container.at("env"), &mut found);
    }
    ports(spec, &mut found);
    let grace = spec.at("terminationGracePeriodSeconds");
    // A new pod has a grace period of 1 instead.
    if template && grace.number().is_some_and(|seconds| seconds < 0) {
        found.push(format!("{}: must be >= 0; negative values are invalid and will be treated as 1", grace.path));
    }
    for pods in ["podAffinity", "podAntiAffinity"].map(|kind| spec.at("affinity").at(kind)) {
        let required = pods.at(REQUIRED);
        let preferred = pods.at(PREFERRED);
        let terms = required.items().chain(preferred.items().map(|term| term.at("podAffinityTerm")));
        found.extend(terms.filter_map(|term| no_selector(&term)));
    }
    let aliases = spec.at("hostAliases");
    let addresses = spec.below("dnsConfig.nameservers");
    let addresses = addresses.items().chain(aliases.items().map(|alias| alias.at("ip")));
    found.extend(addresses.filter_map(|ip| names::ip_warning(&ip.path, ip.text())));
    found
}

fn no_selector(of: &Field<'_>) -> Option<String> {
    let selector = of.at("labelSelector");
    (!selector.is_set()).then(|| format!("{}: {NO_SELECTOR}", selector.path))
}

/// Warnings about deprecated node labels.
fn nodes(spec: &Field<'_>, found: &mut Vec<String>) {
    for (key, label) in spec.at("nodeSelector").entries() {
        found.extend(node_selector::deprecated(key).map(|why| format!("{}: {why}", label.path)));
    }
    let affinity = spec.below("affinity.nodeAffinity");
    found.extend(node_selector::warnings(&affinity.at(REQUIRED)));
    for term in affinity.at(PREFERRED).items() {
        found.extend(node_selector::term_warnings(&term.at("preference"), false));
    }
    for constraint in spec.at("topologySpreadConstraints").items() {
        let key = constraint.at("topologyKey");
        found.extend(node_selector::deprecated(key.text()).map(|why| format!("{}: {} is {why}", key.path, key.text())));
        found.extend(no_selector(&constraint));
    }
}

fn volumes(spec: &Field<'_>, found: &mut Vec<String>) {
    for volume in spec.at("volumes").items() {
        found.extend(old_volumes::warnings(&volume, &old_volumes::OF_PODS));
        found.extend(volume_claims::fractions(&volume.below("ephemeral.volumeClaimTemplate.spec")));
    }
    found.extend(overlaps::warnings(&spec.at("volumes")));
}

fn host_aliases(aliases: &Field<'_>, found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for ip in aliases.items().map(|alias| alias.at("ip")) {
        if !seen.insert(ip.text()) {
            found.push(format!("{}: duplicate ip {:?}", ip.path, ip.text()));
        }
    }
}

fn pull_secrets(secrets: &Field<'_>, found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in secrets.items().map(|secret| secret.at("name")) {
        if !seen.insert(name.text()) {
            found.push(format!("{}: duplicate name {:?}", name.path, name.text()));
        }
    }
    for name in secrets.items().map(|secret| secret.at("name")).filter(Field::is_empty) {
        found.push(format!("{}: invalid empty name \"\"", name.path));
    }
}

fn variables(variables: &Field<'_>, found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for variable in variables.items() {
        let (name, value) = (variable.at("name").text(), variable.at("value").text());
        let reference = format!("$({name})");
        let adds = !variable.at("valueFrom").is_set() && value != reference && value.contains(&reference);
        if !seen.insert(name) && !adds {
            let why = format!("hides previous definition of {name:?}, which may be dropped when using apply");
            found.push(format!("{}: {why}", variable.path));
        }
    }
}

fn ports(spec: &Field<'_>, found: &mut Vec<String>) {
    let mut by_port: BTreeMap<(i64, &str), Vec<Field<'_>>> = BTreeMap::new();
    let mut by_name: BTreeMap<&str, String> = BTreeMap::new();
    for port in containers(spec).flat_map(|container| container.at("ports").items()) {
        let here = &port.path;
        let number = |of: &Field<'_>, field: &'static str| of.at(field).number().unwrap_or(0);
        let (name, protocol, ip) = (port.at("name").text(), port.at("protocol").text(), port.at("hostIP").text());
        let (on_host, inside) = (number(&port, "hostPort"), number(&port, "containerPort"));
        if !ip.is_empty() && on_host == 0 {
            found.push(format!(
                "{here}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{inside} Protocol:{protocol} HostIP:{ip}}}"
            ));
        }
        let others = by_port.entry((inside, protocol)).or_default();
        for other in others.iter() {
            let (other_on_host, other_ip) = (number(other, "hostPort"), other.at("hostIP").text());
            let how = if on_host == other_on_host && ip == other_ip {
                "duplicate"
            } else if on_host == 0 || other_on_host == 0 {
                "overlapping"
            } else if on_host == other_on_host && ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            found.push(format!("{here}: {how} port definition with {}", other.path));
        }
        if let Some(other) = by_name.get(name) {
            let why = format!("services and probes that select ports by name will use {other}");
            found.push(format!("{here}: duplicate port name {name:?} with {other}, {why}"));
        } else if !name.is_empty() {
            by_name.insert(name, here.to_string());
        }
        others.push(port);
    }
}
