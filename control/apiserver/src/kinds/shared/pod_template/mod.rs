//! The spec of a pod, in the pod itself or in the template of a controller.

pub(crate) mod annotations;
mod container;
mod disabled;
mod ephemeral_containers;
mod fields;
mod leniency;
mod overlaps;
mod resources;
mod scheduling;
mod security;
pub(crate) mod security_profiles;
mod tolerations;
mod volume;
mod warnings;
mod windows;

use serde_json::Value;

use super::field::Field;
use crate::apiserver::pipeline::validation::{errors::Errors, names};
use container::Pod;
pub(crate) use disabled::drop_disabled;
pub(crate) use ephemeral_containers::validate_update as validate_ephemeral_containers_update;
pub(crate) use leniency::Leniency;
pub(crate) use scheduling::complete as complete_scheduling;
pub(crate) use volume::validate_no_back_steps;
pub(crate) use warnings::warnings;

/// The lists of containers in a spec, in upstream's order.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The annotation of the pods by which a node shows those of its own files.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// The containers of all lists.
fn containers<'a>(spec: &Field<'a>) -> impl Iterator<Item = Field<'a>> + use<'a> {
    CONTAINER_LISTS.map(|list| spec.at(list).items()).into_iter().flatten()
}

/// Validates the spec of a template, in a controller, which has its own rules for some of it.
pub(crate) fn validate_template(spec: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    validate_spec(spec, &Value::Null, true, leniency, errors);
}

/// Validates tolerations, wherever they stand.
pub(crate) fn validate_tolerations(all: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    tolerations::validate(all, &Pod::of_nothing(leniency), errors);
}

/// Validates the spec of a pod with this metadata.
pub(crate) fn validate_pod(metadata: &Value, spec: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    let pod = validate_spec(spec, metadata, false, leniency, errors);
    fields::tokens_of_nobody(spec, &pod, errors);
    for container in ["containers", "initContainers"].into_iter().flat_map(|list| spec.at(list).items()) {
        container::only_for_pods(&container, errors);
    }
}

/// Validates what a RuntimeClass adds to its pods: the cost besides their containers, and which taints they take.
pub(crate) fn validate_runtime_class(overhead: &Field<'_>, tolerations: &Field<'_>, errors: &mut Errors) {
    let leniency = Leniency::of(None);
    let pod = Pod::of_nothing(leniency);
    resources::validate_overhead(overhead, &pod, errors);
    tolerations::validate(tolerations, &pod, errors);
}

fn validate_spec<'a>(
    spec: &Field<'a>,
    metadata: &Value,
    template: bool,
    leniency: Leniency<'a>,
    errors: &mut Errors,
) -> Pod<'a> {
    let (grace, claims) = (spec.at("terminationGracePeriodSeconds"), spec.at("resourceClaims"));
    if !grace.is_set() {
        grace.required("", errors);
    }
    let pod_name = metadata["name"].as_str().unwrap_or_default();
    let pod = Pod {
        volumes: volume::all(&spec.at("volumes"), pod_name, template, leniency, errors),
        claims: claims.items().map(|claim| claim.at("name").text()).filter(|name| !name.is_empty()).collect(),
        grace: grace.number(),
        restart_policy: spec.at("restartPolicy").text(),
        has_users: security::has_users(spec),
        template,
        leniency,
    };
    fields::resource_claims(&claims, metadata["annotations"].get(MIRROR).is_some(), errors);
    container::validate_containers(&spec.at("containers"), &pod, errors);
    container::validate_init_containers(spec, &pod, errors);
    ephemeral_containers::validate(spec, &pod, errors);
    resources::validate_pod(spec, &pod, errors);
    container::validate_host_network(spec, &pod, errors);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    spec.at("restartPolicy").required_one_of(&["Always", "OnFailure", "Never"], errors);
    spec.at("dnsPolicy").required_one_of(&dns, errors);
    names::labels(&spec.value["nodeSelector"], &spec.at("nodeSelector").path, errors);
    security::validate_pod(spec, &pod, errors);
    scheduling::validate_affinity(&spec.at("affinity"), leniency, errors);
    fields::dns(spec, errors);
    fields::gates(spec, errors);
    scheduling::validate_spread(&spec.at("topologySpreadConstraints"), leniency, errors);
    windows::validate_host_process(spec, errors);
    security::validate_users(spec, &pod, errors);
    fields::hostname_override(spec, errors);
    fields::names_of_others(spec, errors);
    tolerations::validate(&spec.at("tolerations"), &pod, errors);
    fields::host_aliases(&spec.at("hostAliases"), errors);
    fields::classes(spec, errors);
    resources::validate_overhead(&spec.at("overhead"), &pod, errors);
    windows::validate_os(spec, errors);
    container::validate_file_references(spec, errors);
    pod
}
