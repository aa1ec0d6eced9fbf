//! NamespaceLifecycle: nothing is created in a missing or terminating namespace, and immortal namespaces cannot be
//! deleted.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    kinds::NAMESPACE_PHASE,
    store::{Condition, Guard, Key, Store},
};

/// Namespaces that cannot be deleted.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The phase of a namespace that is being deleted.
const TERMINATING: &str = "Terminating";

/// Refuses the write.
#[derive(Debug)]
pub(super) struct NamespaceLifecycle {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Delete)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let target = attributes.target;
        if attributes.operation == Operation::Delete {
            let immortal = attributes.is_core("namespaces") && IMMORTAL_NAMESPACES.contains(&target.name());
            let refused = || attributes.forbidden(object, "this namespace may not be deleted");
            return if immortal { Err(refused()) } else { Ok(()) };
        }
        match &target.namespace {
            // What is posted to an object is refused with the object.
            Some(namespace) if target.subresource.is_none() => self.check_active(attributes, object, namespace),
            _ => Ok(()),
        }
    }

    /// The namespace is still active when the object is stored.
    fn guards(&self, attributes: &AdmissionAttributes<'_>) -> Vec<Guard> {
        let namespace = attributes.target.namespace.clone();
        let guarded = namespace.filter(|_| attributes.operation == Operation::Create);
        let guard = |name: String| Guard {
            resource: self.store.resource("namespaces"),
            key: Key { namespace: String::new(), name },
            condition: Condition::Indexed { field: NAMESPACE_PHASE, allows: |phase| phase != TERMINATING },
        };
        guarded.map(guard).into_iter().collect()
    }
}

impl NamespaceLifecycle {
    fn check_active(
        &self,
        attributes: &AdmissionAttributes<'_>,
        object: &Value,
        namespace: &str,
    ) -> Result<(), ApiError> {
        let key = Key { namespace: String::new(), name: namespace.to_owned() };
        let phase = self.store.index_value(self.store.resource("namespaces"), &key, NAMESPACE_PHASE);
        let phase = phase.ok_or_else(|| ApiError::not_found_in("", "namespaces", namespace))?;
        // Events are refused as well, as upstream.
        if phase != TERMINATING {
            return Ok(());
        }
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = format!("namespace {namespace} is being terminated");
        let error = attributes.forbidden(object, &why);
        Err(error.with_cause("NamespaceTerminating", &cause, "metadata.namespace"))
    }
}
