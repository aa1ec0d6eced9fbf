//! The containers of a pod. Pure.

mod environment;
mod handlers;
mod mounts;
mod restarts;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    leniency::{Broken, Leniency},
    resources, security,
};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, PORT},
        names,
    },
    kinds::shared::field::Field,
};
pub(super) use environment::{validate_field_reference, validate_file_references, validate_resource_reference};

const ONLY_SIDECARS: &str = "may not be set for init containers without restartPolicy=Always";

/// What the containers of a pod share.
#[derive(Debug)]
pub(super) struct Pod<'a> {
    /// The volumes that are valid, by name.
    pub(super) volumes: BTreeMap<&'a str, &'a Value>,
    /// The names of `resourceClaims`.
    pub(super) claims: BTreeSet<&'a str>,
    /// How long its end may take, in seconds; `None` where that is not known.
    pub(super) grace: Option<i64>,
    pub(super) restart_policy: &'a str,
    /// Whether it has users of its own.
    pub(super) has_users: bool,
    /// Whether it stands in a controller.
    pub(super) template: bool,
    pub(super) leniency: Leniency<'a>,
}

impl<'a> Pod<'a> {
    /// A pod of which nothing is known.
    pub(super) fn of_nothing(leniency: Leniency<'a>) -> Self {
        let (volumes, claims) = (BTreeMap::new(), BTreeSet::new());
        Self { volumes, claims, grace: None, restart_policy: "", has_users: false, template: true, leniency }
    }
}

/// Validates the containers that run for as long as the pod does.
pub(super) fn validate_containers(all: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if all.is_empty() {
        return all.required("", errors);
    }
    let mut seen = BTreeSet::new();
    for container in all.items() {
        common(&container, pod, errors);
        if !seen.insert(container.at("name").text()) {
            container.at("name").duplicate(errors);
        }
        handlers::validate(&container, pod.grace, errors);
        restarts::validate_policy(&container, errors);
    }
    let mut host_ports = BTreeSet::new();
    all.items().for_each(|container| unique_host_ports(&container, &mut host_ports, errors));
}

/// Validates the containers that run before others.
pub(super) fn validate_init_containers(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let all = spec.at("initContainers");
    let mut seen: BTreeSet<&str> = spec.at("containers").items().map(|each| each.at("name").text()).collect();
    for container in all.items() {
        common(&container, pod, errors);
        restarts::validate_policy(&container, errors);
        let name = container.at("name");
        if seen.contains(name.text()) {
            name.duplicate(errors);
        } else if !name.is_empty() {
            seen.insert(name.text());
        }
        // They run one after another; the path is upstream's.
        let alone = Field { value: container.value, path: format!("{}[0]", all.path).into() };
        unique_host_ports(&alone, &mut BTreeSet::new(), errors);
        if container.at("restartPolicy").text() == "Always" {
            handlers::validate(&container, pod.grace, errors);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"].map(|field| container.at(field)) {
            if field.is_set() {
                field.forbidden(ONLY_SIDECARS, errors);
            }
        }
        if !pod.leniency.allows(Broken::RestartToResize) {
            restarts::validate_resize_of_init_container(&container.at("resizePolicy"), errors);
        }
    }
}

/// Checks what containers of all sorts have.
pub(super) fn common(container: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    container.at("name").named(names::label, errors);
    let image = container.at("image");
    if image.is_empty() {
        image.required("", errors);
    }
    container.at("terminationMessagePolicy").one_of(&["File", "FallbackToLogsOnError"], errors);
    ports(&container.at("ports"), errors);
    environment::validate(container, errors);
    mounts::validate(container, pod, errors);
    pull_policy(&container.at("imagePullPolicy"), errors);
    resources::validate_container(&container.at("resources"), pod, errors);
    restarts::validate_resize_policy(&container.at("resizePolicy"), pod.restart_policy, errors);
    security::validate_container(&container.at("securityContext"), pod.has_users, errors);
}

/// Refuses what a container in a pod may not have, and one in a template may.
pub(super) fn only_for_pods(container: &Field<'_>, errors: &mut Errors) {
    let image = container.at("image");
    if image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace", errors);
    }
}

/// Validates when an image is pulled.
pub(super) fn pull_policy(policy: &Field<'_>, errors: &mut Errors) {
    policy.required_one_of(&["Always", "IfNotPresent", "Never"], errors);
}

fn ports(ports: &Field<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let (name, inside, on_host) = (port.at("name"), port.at("containerPort"), port.at("hostPort"));
        if !name.is_empty() {
            let problems = names::port_name_problems(name.text());
            problems.iter().for_each(|why| name.invalid(why, errors));
            if problems.is_empty() && !seen.insert(name.text()) {
                name.duplicate(errors);
            }
        }
        match inside.number() {
            None | Some(0) => inside.required("", errors),
            Some(1..=65535) => {}
            Some(_) => inside.invalid(PORT, errors),
        }
        if on_host.number().is_some_and(|number| !(0..=65535).contains(&number)) {
            on_host.invalid(PORT, errors);
        }
        port.at("protocol").required_one_of(&["SCTP", "TCP", "UDP"], errors);
        // Upstream takes any text; a port that is meant for one address must not be opened on all.
        port.at("hostIP").optionally_fits(names::ip, errors);
    }
}

fn unique_host_ports<'a>(container: &Field<'a>, seen: &mut BTreeSet<String>, errors: &mut Errors) {
    for port in container.at("ports").items() {
        let number = port.at("hostPort").number().unwrap_or(0);
        let key = format!("{}/{}/{number}", port.at("protocol").text(), port.at("hostIP").text());
        if number != 0 && !seen.insert(key.clone()) {
            errors.duplicate(port.at("hostPort").path, &Value::from(key));
        }
    }
}

/// Refuses ports of the host that are others than those inside where both are the same network.
pub(super) fn validate_host_network(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if spec.value["hostNetwork"] != true {
        return;
    }
    for port in spec.at("containers").items().flat_map(|container| container.at("ports").items()) {
        let number = |field: &'static str| port.at(field).number().unwrap_or(0);
        let (on_host, inside) = (number("hostPort"), number("containerPort"));
        if on_host != inside && (!pod.template || on_host != 0) {
            let why = "must match `containerPort` when `hostNetwork` is true";
            port.at("hostPort").invalid_as(&on_host.to_string(), why, errors);
        }
    }
}
