//! Admission plugins: what is added to an object that is written, and who may write it; one file for each of upstream's.
//! Plugins may read the store and change nothing but the object.

mod certificates;
mod default_storage_class;
mod default_tolerations;
mod namespace_lifecycle;
mod node_restriction;
mod pod_security;
mod priority;
mod rbac_escalation;
mod service_account;
mod taint_nodes;

use std::sync::Arc;

use crate::{
    apiserver::{AdmissionPlugin, Authorizers},
    plugin::authorizer::rbac::SyncedPolicy,
    store::Store,
};

/// The plugins, in upstream's order.
pub(crate) fn plugins(
    store: &Store,
    authorizers: &Authorizers,
    policy: &Arc<SyncedPolicy>,
) -> Vec<Arc<dyn AdmissionPlugin>> {
    let mut plugins: Vec<Arc<dyn AdmissionPlugin>> = vec![
        Arc::new(namespace_lifecycle::NamespaceLifecycle { store: store.clone() }),
        Arc::new(service_account::ServiceAccount { store: store.clone() }),
        Arc::new(node_restriction::NodeRestriction { store: store.clone() }),
        Arc::new(taint_nodes::TaintNodesByCondition),
        Arc::new(pod_security::PodSecurity { store: store.clone() }),
        Arc::new(priority::Priority),
        Arc::new(default_tolerations::DefaultTolerationSeconds),
        Arc::new(default_storage_class::DefaultStorageClass { store: store.clone() }),
    ];
    plugins.extend(certificates::plugins(authorizers));
    plugins.push(Arc::new(rbac_escalation::RbacEscalation { policy: Arc::clone(policy) }));
    plugins
}
