//! The other versions of a resource, for those who own fields of its objects in them. Pure.

use std::sync::Arc;

use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;
use windlass_apimachinery::{
    managed_fields::{ConvertError, Type, Versions},
    schema::Schema,
};

use crate::apiserver::types::{Catalog, Version};

/// The versions of the resource of a request.
#[derive(Debug)]
pub(in crate::apiserver) struct FieldVersions {
    version: Arc<Version>,
    catalog: Arc<Catalog>,
    object_meta: Arc<Schema>,
}

impl FieldVersions {
    pub(in crate::apiserver) fn new(version: &Arc<Version>, catalog: Arc<Catalog>, object_meta: &Arc<Schema>) -> Self {
        Self { version: Arc::clone(version), catalog, object_meta: Arc::clone(object_meta) }
    }

    /// A version of a built-in resource, also in another group: one that has the same stored objects.
    fn built_in(&self, api_version: &str) -> Option<&Arc<Version>> {
        let GroupVersion { group, version } = GroupVersion::parse(api_version);
        let all = self.catalog.of_kind(group, &self.version.kind);
        all.iter().find(|other| other.gvk.version == version && other.id() == self.version.id())
    }

    fn is_built_in(&self) -> bool {
        self.version.spec.schema.is_built_in()
    }
}

impl Versions for FieldVersions {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        let schema = if self.is_built_in() {
            &self.built_in(api_version)?.spec.schema
        } else {
            self.version.schema_of(api_version)?
        };
        Some(Type::new(schema.node(), &self.object_meta))
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConvertError> {
        if to.split('/').count() > 2 {
            return Err(ConvertError::Failed(format!("unexpected GroupVersion string: {to}")));
        }
        if !self.is_built_in() {
            let converted = self.version.convert_between(object, from, to);
            return converted.map_err(|error| ConvertError::Failed(error.to_string()));
        }
        let (Some(from), Some(to)) = (self.built_in(from), self.built_in(to)) else {
            return Err(ConvertError::NoVersion);
        };
        let mut object = object.clone();
        let converted = from.convert_to_storage(&mut object).and_then(|()| to.convert_from_storage(&mut object));
        converted.map(|()| object).map_err(|error| ConvertError::Failed(error.to_string()))
    }
}
