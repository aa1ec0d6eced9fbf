//! Pod, with its subresources, one file for each.

pub(crate) mod binding;
mod claim_statuses;
mod connect;
mod container;
mod container_statuses;
mod ephemeral_containers;
mod eviction;
mod log;
pub(in crate::kinds::core) mod proxy;
mod qos;
mod resize;
mod status;
mod table;
mod validation;

use std::{borrow::Cow, sync::Arc};

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::pod;

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        KubeletClient, Strategy,
        generate::now,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Gvk, Resource, Serves, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            field::Field,
            pod_template::{self, Leniency, security_profiles},
            set_phase,
            tables::{AGE, column, wide},
            workload,
        },
        types,
    },
};

/// The resource. Without a kubelet client there are no logs and no connections to containers.
pub(crate) fn definition(kubelet: Option<KubeletClient>) -> Definition {
    let mut resource = Resource::new("", "pods", "Pod", Pod);
    resource.short_names = vec!["po".into()];
    resource.categories = vec!["all".into()];
    resource.returns_deleted = true;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Pod"));
    v1.selectable = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ]
    .map(SelectableField::path)
    .to_vec();
    v1.selectable.push(SelectableField::with_absent("spec.hostNetwork", "false"));
    // The first of several, as upstream compares lists of addresses.
    v1.selectable.push(SelectableField::at("status.podIPs", &[Cow::Borrowed("status.podIPs.0.ip")]));
    v1.subresources = subresources(kubelet);
    v1.table = table::table(vec![
        column("Ready", "Containers that are ready, of all."),
        column("Status", "What the pod is doing."),
        column("Restarts", "How often containers were started again."),
        AGE,
        wide("IP", "The pod's address."),
        wide("Node", "Where it runs."),
        wide("Nominated Node", "Where it may run soon."),
        wide("Readiness Gates", "Conditions that it waits for."),
    ]);
    Definition::single(resource, v1)
}

fn subresources(kubelet: Option<KubeletClient>) -> Vec<Subresource> {
    let connect = |name: &'static str, kind: &'static str, kubelet: &Option<KubeletClient>| {
        let handler = connect::Connect { subresource: name, kubelet: kubelet.clone() };
        Subresource::of_kind(name, Gvk::of("", "v1", kind), &["create", "get"], Serves::custom(handler))
    };
    let custom = |name, kind, handler| Subresource::of_kind(name, kind, &["create"], handler);
    vec![
        connect("attach", "PodAttachOptions", &kubelet),
        custom("binding", Gvk::of("", "v1", "Binding"), Serves::custom(binding::Bind)),
        Subresource::of_object(
            "ephemeralcontainers",
            &["get", "patch", "update"],
            Serves::Part(Arc::new(ephemeral_containers::EphemeralContainers)),
        ),
        custom("eviction", Gvk::of("policy", "v1", "Eviction"), Serves::custom(eviction::Evict)),
        connect("exec", "PodExecOptions", &kubelet),
        Subresource::of_object("log", &["get"], Serves::custom(log::Log { kubelet: kubelet.clone() })),
        connect("portforward", "PodPortForwardOptions", &kubelet),
        Subresource::proxy("PodProxyOptions", proxy::Proxy),
        Subresource::of_object("resize", &["get", "patch", "update"], Serves::Part(Arc::new(resize::Resize))),
        Subresource::status(),
    ]
}

#[derive(Debug)]
struct Pod;

impl Strategy for Pod {
    fn default(&self, object: &mut Map<String, Value>) {
        pod(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_phase(object, "Pending");
        pod_template::drop_disabled(&mut object["spec"], None);
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        pod_template::drop_disabled(&mut object["spec"], Some(&old["spec"]));
    }

    fn complete_fields(&self, object: &mut Value) -> Vec<String> {
        security_profiles::app_armor_of_annotations(object)
    }

    /// Sets the QoS class, the selectors of affinity and the scheduling condition of a new pod, which admission may have
    /// changed.
    fn complete_create(&self, object: &mut Value, _is_labelled: bool) {
        pod_template::complete_scheduling(object);
        // An invalid spec is refused by validation.
        if let Ok(class) = qos::qos_class(&object["spec"]) {
            object["status"]["qosClass"] = json!(class.name());
        }
        if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            object["status"]["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": now(), "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        status::reset_fields(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        match subresource {
            "status" => Some(&["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"]),
            _ => None,
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validate_whole(object, None, errors);
        let spec = Field::root(object).at("spec");
        let ephemeral = spec.at("ephemeralContainers");
        if !ephemeral.is_empty() {
            ephemeral.forbidden("cannot be set on create", errors);
        }
        if !spec.at("nodeName").is_empty() && !spec.at("schedulingGates").is_empty() {
            spec.at("nodeName").forbidden("cannot be set until all schedulingGates have been cleared", errors);
        }
        security_profiles::validate_match(&object["metadata"]["annotations"], &spec, errors);
    }

    /// Pods are updated by programs, whose warnings no user reads.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let pod = Field::root(new);
        if old.is_some() {
            return Vec::new();
        }
        let name = workload::name_warning(new, old, "the Pod's hostname");
        name.into_iter().chain(pod_template::warnings(&pod.at("metadata"), &pod.at("spec"), false)).collect()
    }

    fn status_warnings(&self, new: &Value, _old: &Value) -> Vec<String> {
        let status = Field::root(new).at("status");
        let addresses = ["podIPs", "hostIPs"].into_iter().flat_map(|list| status.at(list).items());
        let addresses = addresses.map(|address| address.at("ip"));
        addresses.filter_map(|ip| names::ip_warning(&ip.path, ip.text())).collect()
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validate_whole(new, Some(old), errors);
        validate_annotations_update(new, old, errors);
        validation::validate_update(new, old, errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validate_annotations_update(new, old, errors);
        status::validate(new, old, errors);
    }

    /// Upstream's rule: the requested grace period, else the spec's; zero for unscheduled and terminal pods.
    fn grace_period(&self, pod: &Value, requested: Option<i64>) -> Option<i64> {
        let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let unscheduled = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
        if finished || unscheduled {
            return Some(0);
        }
        let grace = requested.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
        Some(if grace < 0 { 1 } else { grace })
    }
}

/// Whether a pod is a node's own.
pub(crate) fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(pod_template::MIRROR).is_some()
}

/// Validates a pod, new or changed.
fn validate_whole(pod: &Value, old: Option<&Value>, errors: &mut Errors) {
    let (annotations, spec) = (Field::root(pod).below("metadata.annotations"), Field::root(pod).at("spec"));
    let leniency = Leniency::of(old);
    pod_template::annotations::validate(&annotations, &spec, leniency, errors);
    pod_template::validate_pod(&pod["metadata"], &spec, leniency, errors);
}

fn validate_annotations_update(new: &Value, old: &Value, errors: &mut Errors) {
    let [is, was] = [new, old].map(|pod| Field::root(pod).below("metadata.annotations"));
    pod_template::annotations::validate_update(&is, &was, errors);
    // Upstream looks at them once more.
    let leniency = Leniency::of(Some(old));
    pod_template::annotations::validate(&is, &Field::root(new).at("spec"), leniency, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::types::Part;

    fn told(errors: Errors) -> Vec<String> {
        errors.0.iter().map(|error| format!("{}: {}", error.field, error.detail)).collect()
    }

    #[test]
    fn a_nodes_own_pods_stay_as_they_are() {
        let pod = |annotations: Value| {
            let mut pod = json!({"metadata": {"name": "x", "annotations": annotations}, "spec": {
                "nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
            super::pod(pod.as_object_mut().unwrap());
            pod
        };
        let own = pod(json!({(pod_template::MIRROR): "x"}));
        let resized = |part: &dyn Part| {
            let mut errors = Errors::default();
            part.validate(&own, &own, &mut errors);
            told(errors)
        };
        assert_eq!(resized(&resize::Resize), ["[]: Forbidden: static pods cannot be resized"]);
        let ephemeral = resized(&ephemeral_containers::EphemeralContainers);
        assert_eq!(ephemeral, ["[]: Forbidden: static pods do not support ephemeral containers"]);
        for other in [json!({}), json!({(pod_template::MIRROR): "y"})] {
            let mut errors = Errors::default();
            Pod.validate_update(&pod(other), &own, &mut errors);
            let why = "Forbidden: may not remove or update mirror pod annotation";
            assert_eq!(told(errors), [format!("metadata.annotations[{}]: {why}", pod_template::MIRROR)]);
        }
        let mut claims = own.clone();
        claims["spec"]["resourceClaims"] = json!([{"name": "a", "resourceClaimName": "b"}]);
        let mut errors = Errors::default();
        Pod.validate_create(&claims, &mut errors);
        assert_eq!(told(errors), ["[]: Forbidden: static pods do not support resource claims"]);
    }
}
