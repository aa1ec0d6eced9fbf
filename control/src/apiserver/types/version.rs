//! A version of a resource: the form in which its objects are served.

use std::{fmt, ops::Deref, sync::Arc};

use axum::body::Bytes;
use serde_json::Value;

use windlass_apimachinery::selectors::SelectableField;

use super::{Conversion, Gvk, Name, Resource, Storage, Table, TypeSchema};
use crate::{
    apiserver::subresource::{Serves, Subresource},
    store::Object,
};

/// What distinguishes a version from the others of its resource.
#[derive(Debug)]
pub struct VersionSpec {
    /// Such as `v1`.
    pub name: Name,
    /// The fields of its objects.
    pub schema: TypeSchema,
    /// The columns that `kubectl get` shows.
    pub table: Table,
    /// Selectable fields beside name and namespace.
    pub selectable: Vec<SelectableField>,
    /// The subresources, in the order of discovery.
    pub subresources: Vec<Subresource>,
    /// How its objects differ from the stored ones.
    pub conversion: Conversion,
    /// The warning of each response of a deprecated version.
    pub deprecation_warning: Option<String>,
}

impl VersionSpec {
    /// A version that is stored as it is served, with the columns of name and age.
    #[must_use]
    pub fn new(name: impl Into<Name>, schema: TypeSchema) -> Self {
        Self {
            name: name.into(),
            schema,
            table: Table::name_and_age(),
            selectable: Vec::new(),
            subresources: Vec::new(),
            conversion: Conversion::None,
            deprecation_warning: None,
        }
    }
}

/// A served version of a resource.
pub struct Version {
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Group, version and kind.
    pub gvk: Gvk,
    /// The rest.
    pub spec: VersionSpec,
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Version").field(&self.gvk).finish()
    }
}

impl Deref for Version {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

impl Version {
    /// A subresource by its name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.spec.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Whether the status is written by `/status` alone.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.spec.subresources.iter().any(|subresource| matches!(subresource.serves, Serves::Status))
    }

    /// Whether the stored bytes are the ones that clients get.
    #[must_use]
    pub fn is_served_as_stored(&self) -> bool {
        self.stores(self.spec.conversion) && self.spec.schema.is_built_in()
    }

    /// A stored object in this version.
    #[must_use]
    pub fn decode(&self, object: &Object) -> Value {
        let mut value = object.value();
        self.convert_from_storage(&mut value);
        value
    }

    /// The bytes of a stored object in this version.
    #[must_use]
    pub fn encode(&self, object: &Object) -> Bytes {
        if self.is_served_as_stored() {
            return object.bytes.clone();
        }
        serde_json::to_vec(&self.decode(object)).unwrap_or_default().into()
    }

    /// Converts a stored object to this version. Objects of schemas that may have changed since they were written are
    /// pruned and get defaults.
    fn convert_from_storage(&self, value: &mut Value) {
        match self.spec.conversion {
            Conversion::None => {}
            Conversion::Rename => value["apiVersion"] = self.gvk.api_version().into(),
            Conversion::Fn { from_storage, .. } => {
                from_storage(value);
                value["apiVersion"] = self.gvk.api_version().into();
            }
        }
        self.spec.schema.complete_stored(value);
    }

    /// Converts an object of this version to the stored form.
    pub(crate) fn convert_to_storage(&self, value: &mut Value) {
        let Storage::Store { api_version, .. } = &self.storage else { return };
        match self.spec.conversion {
            Conversion::None => return,
            Conversion::Rename => {}
            Conversion::Fn { to_storage, .. } => to_storage(value),
        }
        value["apiVersion"] = api_version.as_str().into();
    }
}

impl Version {
    /// How errors of upstream write a resource version that is not set: custom resources write the number in hexadecimal.
    pub(crate) fn unset_resource_version(&self) -> &'static str {
        if self.spec.schema.is_built_in() { "0" } else { "0x0" }
    }
}
