//! LimitRanger: containers get the default requests and limits of the namespace's LimitRanges, and pods and volume claims
//! must be within their bounds. `bounds` decides and is pure.

mod bounds;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation, aggregate},
    store::{ResourceId, Store},
};

/// Sets the defaults and refuses what is out of bounds.
#[derive(Debug)]
pub(super) struct LimitRanger {
    store: Store,
    limit_ranges: ResourceId,
}

impl LimitRanger {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), limit_ranges: store.resource("limitranges") }
    }

    /// The LimitRanges that a write must obey, in the order of their names.
    fn limit_ranges(&self, attributes: &AdmissionAttributes<'_>) -> Vec<Value> {
        let is_update = attributes.operation == Operation::Update;
        let concerned = match attributes.target.subresource() {
            // The resources of a pod only change by a resize.
            "" => attributes.is_core("persistentvolumeclaims") || (attributes.is_core("pods") && !is_update),
            "resize" => attributes.is_core("pods") && is_update,
            _ => false,
        };
        let is_ending = attributes.old.is_some_and(|old| !old["metadata"]["deletionTimestamp"].is_null());
        let Some(namespace) = attributes.target.namespace.as_deref().filter(|_| concerned && !is_ending) else {
            return Vec::new();
        };
        self.store.list(self.limit_ranges, Some(namespace)).0.iter().map(|object| object.value()).collect()
    }
}

#[async_trait]
impl AdmissionPlugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if attributes.is_core("pods") {
            self.limit_ranges(attributes).iter().for_each(|range| bounds::set_defaults(range, object));
        }
        Ok(())
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        for range in self.limit_ranges(attributes) {
            let violations = if attributes.is_core("pods") {
                bounds::violations_of_pod(&range, object)
            } else {
                bounds::violations_of_claim(&range, object)
            };
            if let Some(why) = aggregate(violations) {
                return Err(attributes.forbidden(object, &why));
            }
        }
        Ok(())
    }
}
