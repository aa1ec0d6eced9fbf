//! The way into the store, for every write of the API.

use std::sync::Arc;

use serde_json::Value;

use super::{Api, error::ApiError, metadata};
use crate::{
    registry::ResourceType,
    store::{Error, Expected, Key, Object, Write},
};

/// Attempts to apply a change to an object that others write too. Upstream's loop ends with the request alone; each
/// failed attempt is another client's successful write.
pub(super) const MAX_WRITE_ATTEMPTS: usize = 1000;

impl Api {
    /// The only way to write into the store: checks that the object can be decoded as its type. `None` when `expected`
    /// does not hold.
    pub(super) async fn commit(
        &self,
        resource: &ResourceType,
        key: Key,
        expected: Expected,
        mut value: Option<Value>,
    ) -> Result<Option<Arc<Object>>, ApiError> {
        if let Some(object) = &mut value {
            let checked = metadata::set_type_meta(&resource.gvk, object)
                .and_then(|()| serde_json::to_vec(object).map_err(|e| e.to_string()))
                .and_then(|bytes| (resource.try_decode)(&bytes).map_err(|e| e.to_string()));
            // One object that cannot be decoded would make every list of its type fail.
            if let Err(why) = checked {
                let name = &key.name;
                tracing::error!(
                    resource = resource.group_resource(),
                    name,
                    why,
                    "refused to store object that clients could not decode"
                );
                return Err(ApiError::internal(format!(
                    "{} {name:?} would not be readable: {why}",
                    resource.group_resource()
                )));
            }
        }
        let name = key.name.clone();
        let write = Write { resource: self.resource_id(resource), key, expected, value, guards: Vec::new() };
        match self.store().write(write).await {
            Ok(written) => Ok(Some(written)),
            Err(Error::Conflict) => Ok(None),
            Err(error) => Err(ApiError::write(resource, &name, &error)),
        }
    }

    /// Fills in what a write would allocate, without allocating it: for dry runs.
    pub(super) fn dry_run(&self, resource: &ResourceType, object: &mut Value) -> Result<(), ApiError> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let planned = self.inner.allocator.dry_run(resource.group_resource(), object);
        planned.map_err(|refusal| ApiError::write(resource, &name, &Error::Allocation(refusal)))
    }
}
