//! The way into the store, for every write of the API.

use std::sync::Arc;

use serde_json::Value;

use super::metadata;
use crate::apiserver::{Api, request::error::ApiError, types::Version};
use crate::store::{Companion, Error, Expected, Guard, Key, Object, Write};

/// Attempts to apply a change to an object that others write too. Upstream's loop ends with the request alone; each
/// failed attempt is another client's successful write.
pub(in crate::apiserver) const MAX_WRITE_ATTEMPTS: usize = 1000;

/// What a write depends on besides its object, and what changes with it.
#[derive(Debug, Default)]
pub(in crate::apiserver) struct Relations {
    pub(in crate::apiserver) guards: Vec<Guard>,
    pub(in crate::apiserver) companions: Vec<Companion>,
}

impl Api {
    /// The only way to write into the store: checks that the object can be decoded as its type, and converts it to the
    /// storage version. `None` when `expected` or a guard does not hold, or a companion refuses.
    pub(in crate::apiserver) async fn commit(
        &self,
        version: &Version,
        key: Key,
        expected: Expected,
        mut value: Option<Value>,
        Relations { guards, companions }: Relations,
    ) -> Result<Option<Arc<Object>>, ApiError> {
        if let Some(object) = &mut value {
            let checked = metadata::set_type_meta(&version.gvk, object)
                .and_then(|()| version.spec.schema.check_decodable(object));
            // One object that cannot be decoded would make every list of its type fail.
            if let Err(why) = checked {
                let (resource, name) = (version.group_resource(), &key.name);
                tracing::error!(resource, name, why, "refused to store object that clients could not decode");
                return Err(ApiError::internal(format!("{resource} {name:?} would not be readable: {why}")));
            }
            version.convert_to_storage(object).await?;
        }
        self.commit_as_stored(version, key, expected, value, Relations { guards, companions }).await
    }

    /// The same for an object in the form in which it is stored, which clients can decode.
    pub(in crate::apiserver) async fn commit_as_stored(
        &self,
        version: &Version,
        key: Key,
        expected: Expected,
        value: Option<Value>,
        Relations { guards, companions }: Relations,
    ) -> Result<Option<Arc<Object>>, ApiError> {
        let resource = version.id().ok_or_else(|| ApiError::internal("the resource is not stored"))?;
        let name = key.name.clone();
        let write = Write { resource, key, expected, value, guards, companions };
        match self.store().write(write).await {
            Ok(written) => Ok(Some(written)),
            Err(Error::Conflict | Error::Guard { .. }) => Ok(None),
            Err(error) => Err(ApiError::write(version, &name, &error)),
        }
    }

    /// Fills in what a write would allocate, without allocating it: for dry runs.
    pub(in crate::apiserver) async fn dry_run(&self, version: &Version, object: &mut Value) -> Result<(), ApiError> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let planned = version.strategy.dry_run(object);
        planned.map_err(|refusal| ApiError::write(version, &name, &Error::Allocation(refusal)))?;
        Ok(version.pass_through_storage(object).await?)
    }
}
