//! Admission plugins: what is added to an object that is written, and who may write it; one file for each of upstream's.
//! Plugins may read the store and change nothing but the object, and with it only what they say before it is stored.

mod certificates;
mod changes;
mod claim_resize;
mod configuration;
mod default_ingress_class;
mod default_tolerations;
mod device_claims;
mod limit_ranger;
mod mountable_secrets;
mod namespace_lifecycle;
mod node_declared_features;
mod node_restriction;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
pub(crate) mod policy;
mod policy_parameters;
mod predicates;
mod priority;
mod privileged_containers;
mod rbac_escalation;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use;
mod taint_nodes;
pub(crate) mod webhook;

use std::sync::Arc;

use crate::{
    apiserver::{AdmissionPlugin, Authorizers},
    plugin::{authorizer::rbac::Policy, store_view::StoreView},
    store::Store,
};

pub(crate) use configuration::{AdmissionConfiguration, AdmissionError};
pub(crate) use policy_parameters::{Plurals, plurals};

/// The plugins, in upstream's order.
pub(crate) fn plugins(
    store: &Store,
    authorizers: &Authorizers,
    policy: &Arc<StoreView<Policy>>,
    configuration: &AdmissionConfiguration,
    plurals: Plurals,
    caller: &webhook::Caller,
    policies: &policy::PolicyContext,
) -> Vec<Arc<dyn AdmissionPlugin>> {
    let mut plugins: Vec<Arc<dyn AdmissionPlugin>> = vec![
        Arc::new(namespace_lifecycle::NamespaceLifecycle { store: store.clone() }),
        Arc::new(limit_ranger::LimitRanger::new(store)),
        Arc::new(service_account::ServiceAccount { store: store.clone() }),
        Arc::new(node_restriction::NodeRestriction { store: store.clone(), authorizers: authorizers.clone() }),
        Arc::new(taint_nodes::TaintNodesByCondition),
        Arc::new(pod_security::PodSecurity { store: store.clone(), configuration: configuration.pod_security.clone() }),
        Arc::new(priority::Priority::new(store)),
        Arc::new(default_tolerations::DefaultTolerationSeconds),
        Arc::new(storage_object_in_use::StorageObjectInUseProtection),
        Arc::new(claim_resize::PersistentVolumeClaimResize { store: store.clone() }),
        Arc::new(runtime_class::RuntimeClass::new(store)),
    ];
    plugins.extend(certificates::plugins(authorizers));
    plugins.extend::<[Arc<dyn AdmissionPlugin>; 12]>([
        Arc::new(default_ingress_class::DefaultIngressClass { store: store.clone() }),
        Arc::new(pod_topology_labels::PodTopologyLabels { store: store.clone() }),
        Arc::new(node_declared_features::NodeDeclaredFeatureValidator { store: store.clone() }),
        Arc::new(pod_resize::PodResizeValidator { store: store.clone() }),
        Arc::new(device_claims::DeviceClaimRights { store: store.clone(), authorizers: authorizers.clone() }),
        Arc::new(policy_parameters::PolicyParameters {
            store: store.clone(),
            authorizers: authorizers.clone(),
            plurals: Arc::new(plurals),
        }),
        Arc::new(rbac_escalation::RbacEscalation { policy: Arc::clone(policy) }),
        Arc::new(policy::MutatingAdmissionPolicy::new(policies.clone())),
        Arc::new(webhook::MutatingAdmissionWebhook::new(caller.clone())),
        Arc::new(policy::ValidatingAdmissionPolicy::new(policies.clone())),
        Arc::new(webhook::ValidatingAdmissionWebhook::new(caller.clone())),
        // The last one: nothing that is counted is refused afterwards.
        Arc::new(resource_quota::ResourceQuota::new(store)),
    ]);
    plugins
}

/// Those of the plugins that are not disabled by name, and, where containers may not be privileged, the one that says so.
pub(crate) fn switched(
    mut plugins: Vec<Arc<dyn AdmissionPlugin>>,
    disabled: &[String],
    privileged_containers: bool,
) -> Vec<Arc<dyn AdmissionPlugin>> {
    plugins.retain(|plugin| !disabled.iter().any(|name| name == plugin.name()));
    if !privileged_containers {
        // Before all others, like a validation: nothing that is counted is refused afterwards.
        plugins.insert(0, Arc::new(privileged_containers::NoPrivilegedContainers));
    }
    plugins
}
