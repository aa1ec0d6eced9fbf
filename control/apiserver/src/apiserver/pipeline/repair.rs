//! Repairs objects that earlier versions stored and that clients cannot decode: one of them makes every list of its
//! type fail.

use std::collections::HashSet;

use super::{commit::Relations, metadata};
use crate::apiserver::{Api, types::Version};
use crate::store::{Expected, Object};

impl Api {
    /// Checks all stored objects and repairs those that cannot be decoded as their type. The names of removed fields
    /// are logged, their values are not. Whether all can be decoded now.
    pub async fn repair(&self) -> bool {
        let mut all = true;
        let catalog = self.catalogs().current();
        let mut seen = HashSet::new();
        // The version that is stored may not be served: the metadata of all has the same type.
        let custom = catalog.all().filter(|version| !version.spec.schema.is_built_in());
        for version in catalog.all().filter(|version| version.is_stored_form()).chain(custom) {
            let Some(id) = version.id().filter(|id| seen.insert(*id)) else { continue };
            for object in self.store().list(id, None).0 {
                if let Err(why) = version.spec.schema.check_decodable(&object.value()) {
                    all &= self.repair_one(version, &object, &why).await;
                }
            }
        }
        all
    }

    async fn repair_one(&self, version: &Version, object: &Object, why: &str) -> bool {
        let key = object.key.clone();
        let (kind, namespace, name) = (version.group_resource(), key.namespace.clone(), key.name.clone());
        let repaired = repaired(version, object);
        let removed = repaired.as_ref().map(|(_, removed)| removed.join(", ")).unwrap_or_default();
        let stored = match repaired {
            Ok((value, _)) => {
                let expected = Expected::Revision(object.revision);
                let (value, nothing) = (Some(value), Relations::default());
                let stored = match is_converted(version, object) {
                    true => self.commit(version, key, expected, value, nothing).await,
                    false => self.commit_as_stored(version, key, expected, value, nothing).await,
                };
                stored.map_err(|e| e.to_string())
            }
            Err(what) => Err(what),
        };
        let is_repaired = stored.is_ok();
        match stored {
            Ok(_) => tracing::warn!(
                kind,
                namespace,
                name,
                why,
                removed,
                "stored object could not be decoded as its type; repaired by removing invalid fields"
            ),
            Err(error) => tracing::error!(
                kind,
                namespace,
                name,
                why,
                error,
                "stored object cannot be decoded as its type and could not be repaired; lists of its type fail until it is deleted"
            ),
        }
        is_repaired
    }
}

/// The object without the fields that its type cannot hold, and the paths of these fields. Pure.
fn repaired(version: &Version, object: &Object) -> Result<(serde_json::Value, Vec<String>), String> {
    let mut value: serde_json::Value = serde_json::from_slice(&object.bytes).map_err(|e| e.to_string())?;
    if !version.spec.schema.is_built_in() {
        // It may be stored in another version, whose metadata has the same type.
        let removed = version.spec.schema.drop_invalid_fields(&mut value);
        if is_converted(version, object) {
            version.convert_from_storage(&mut value).map_err(|e| e.to_string())?;
        }
        let value = named_as_stored(version, object, value);
        version.spec.schema.check_decodable(&value)?;
        return Ok((value, removed));
    }
    let fields = value.as_object_mut().ok_or("it is no JSON object")?;
    for field in ["kind", "apiVersion"] {
        fields.remove(field);
    }
    metadata::set_type_meta(&version.gvk, &mut value)?;
    let removed = version.spec.schema.drop_invalid_fields(&mut value);
    version.spec.schema.prune(&mut value);
    Ok((named_as_stored(version, object, value), removed))
}

/// Whether an object is repaired in the version that is stored: where that is not served, or a webhook would have to convert the
/// object, it stays in its own.
fn is_converted(version: &Version, object: &Object) -> bool {
    version.is_stored_form() && (version.is_in_storage_version(object) || !version.converts_by_webhook())
}

/// The object with the name and namespace by which it is found.
fn named_as_stored(version: &Version, object: &Object, mut value: serde_json::Value) -> serde_json::Value {
    if !value["metadata"].is_object() {
        value["metadata"] = serde_json::json!({});
    }
    value["metadata"]["name"] = object.key.name.clone().into();
    if version.namespaced {
        value["metadata"]["namespace"] = object.key.namespace.clone().into();
    }
    value
}
