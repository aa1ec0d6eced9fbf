//! Objects that earlier versions stored and that clients cannot read: one of them makes every list of its type fail.

use crate::{
    registry::{ResourceType, TYPES},
    schema,
    store::{Expected, Key, Object},
};

use super::{Api, prepare};

impl Api {
    /// Looks through everything that is stored, and mends what cannot be read as its own type. What an object loses by
    /// that is told in the log, by field and not by value.
    pub async fn repair(&self) {
        for resource in TYPES {
            for (key, object) in self.store().list(resource.qualified(), None).0 {
                if let Err(why) = (resource.readable)(&object.bytes) {
                    self.repair_one(resource, key, &object, &why.to_string()).await;
                }
            }
        }
    }

    async fn repair_one(&self, resource: &ResourceType, key: Key, object: &Object, why: &str) {
        let (kind, namespace, name) = (resource.qualified(), key.namespace.clone(), key.name.clone());
        let mended = mended(resource, &key, object);
        let removed = mended.as_ref().map(|(_, removed)| removed.join(", ")).unwrap_or_default();
        let stored = match mended {
            Ok((value, _)) => {
                let expected = Expected::Revision(object.revision);
                self.commit(resource, key, expected, Some(value)).await.map_err(|e| e.to_string())
            }
            Err(what) => Err(what),
        };
        match stored {
            Ok(_) => tracing::warn!(
                kind,
                namespace,
                name,
                why,
                removed,
                "a stored object could not be read as its own type; it was mended by removing the fields that do not fit"
            ),
            Err(error) => tracing::error!(
                kind,
                namespace,
                name,
                why,
                error,
                "a stored object cannot be read as its own type and could not be mended; lists of its type will fail until it is deleted"
            ),
        }
    }
}

/// The object with what its type can hold, and the fields that it lost. Pure.
fn mended(resource: &ResourceType, key: &Key, object: &Object) -> Result<(serde_json::Value, Vec<String>), String> {
    let mut value: serde_json::Value = serde_json::from_slice(&object.bytes).map_err(|e| e.to_string())?;
    let fields = value.as_object_mut().ok_or("it is no JSON object")?;
    for field in ["kind", "apiVersion"] {
        fields.remove(field);
    }
    prepare::type_meta(&resource.gvk, &mut value)?;
    let removed = schema::salvage(&resource.gvk, &mut value);
    schema::prune(&resource.gvk, &mut value);
    if !value["metadata"].is_object() {
        value["metadata"] = serde_json::json!({});
    }
    value["metadata"]["name"] = key.name.clone().into();
    if resource.namespaced {
        value["metadata"]["namespace"] = key.namespace.clone().into();
    }
    Ok((value, removed))
}
