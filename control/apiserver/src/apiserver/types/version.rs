//! A version of a resource: the form in which its objects are served.

use std::{borrow::Cow, fmt, ops::Deref, sync::Arc};

use axum::body::Bytes;
use serde_json::Value;

use windlass_apimachinery::selectors::SelectableField;

use super::{Conversion, ConversionError, Gvk, Name, Resource, Serves, Storage, Subresource, Table, TypeSchema};
use crate::store::Object;

/// What distinguishes a version from the others of its resource.
#[derive(Debug)]
pub struct VersionSpec {
    /// Such as `v1`.
    pub name: Name,
    /// The fields of its objects.
    pub schema: TypeSchema,
    /// The columns that `kubectl get` shows.
    pub table: Table,
    /// Selectable fields besides name and namespace.
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
    /// Differs for each that was ever installed, as its schema may.
    pub(in crate::apiserver) serial: u64,
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

    /// Whether objects of the resource are stored in this version, in the form that clients get or, of custom resources, one
    /// that is completed for them.
    #[must_use]
    pub fn is_stored_form(&self) -> bool {
        let own = self.gvk.api_version();
        let is_stored = matches!(&self.storage, Storage::Store { api_version, .. } if *api_version == own);
        self.is_served_as_stored() || (!self.spec.schema.is_built_in() && is_stored)
    }

    /// A stored object in this version.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub fn decode(&self, object: &Object) -> Result<Value, ConversionError> {
        let mut value = object.value();
        self.convert_from_storage(&mut value)?;
        Ok(value)
    }

    /// The bytes of a stored object in this version.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub fn encode(&self, object: &Object) -> Result<Bytes, ConversionError> {
        if self.is_served_as_stored() {
            return Ok(object.bytes.clone());
        }
        Ok(serde_json::to_vec(&self.decode(object)?).unwrap_or_default().into())
    }

    /// Whether a stored object can be had in this version.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub fn check_convertible(&self, object: &Object) -> Result<(), ConversionError> {
        if self.spec.schema.is_built_in() {
            return Ok(());
        }
        self.stored_schema(&stored_version(object), &self.gvk.api_version()).map(drop)
    }

    /// Whether a stored object would be written again as it is: it may be in a version that was stored before.
    #[must_use]
    pub fn is_in_storage_version(&self, object: &Object) -> bool {
        let Storage::Store { api_version, .. } = &self.storage else { return true };
        self.spec.schema.is_built_in() || stored_version(object) == *api_version
    }

    /// The schema of an object of a custom resource that is stored in `from`, if it is another than that of `to`.
    fn stored_schema(&self, from: &str, to: &str) -> Result<Option<&TypeSchema>, ConversionError> {
        if from == to {
            return Ok(None);
        }
        let schema = self.schema_of(from).ok_or_else(|| ConversionError::from_unknown(from))?;
        if matches!(self.spec.conversion, Conversion::Webhook) {
            return Err(ConversionError::webhook(&self.gvk_of(from)));
        }
        Ok(Some(schema))
    }

    /// The kind in another version of the group.
    fn gvk_of(&self, api_version: &str) -> Gvk {
        let version = api_version.rsplit('/').next().unwrap_or("").to_owned();
        Gvk { version: version.into(), ..self.gvk.clone() }
    }

    /// Converts a stored object to this version. Custom objects are pruned and get defaults by the schema of the version in
    /// which they are stored, which may have changed since, and are pruned by that of this version. As upstream, they get no
    /// defaults of this version.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub(crate) fn convert_from_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        match self.spec.conversion {
            Conversion::None => {}
            Conversion::Rename | Conversion::Webhook => {
                let (from, to) = (value["apiVersion"].as_str().unwrap_or("").to_owned(), self.gvk.api_version());
                if let Some(stored) = self.stored_schema(&from, &to)? {
                    stored.complete_stored(value);
                    value["apiVersion"] = to.into();
                    self.spec.schema.prune_alone(value);
                    return Ok(());
                }
            }
            Conversion::Fn { from_storage, .. } => {
                from_storage(value);
                value["apiVersion"] = self.gvk.api_version().into();
            }
        }
        self.spec.schema.complete_stored(value);
        Ok(())
    }

    /// Converts an object of this version to the stored form.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub(crate) fn convert_to_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        let Storage::Store { api_version, .. } = &self.storage else { return Ok(()) };
        match self.spec.conversion {
            Conversion::None => return Ok(()),
            Conversion::Rename | Conversion::Webhook => {
                let own = self.gvk.api_version();
                if own == *api_version {
                    return Ok(());
                }
                if matches!(self.spec.conversion, Conversion::Webhook) {
                    return Err(ConversionError::webhook(&self.gvk));
                }
                if let Some(schema) = self.schema_of(api_version) {
                    schema.prune_alone(value);
                }
            }
            Conversion::Fn { to_storage, .. } => to_storage(value),
        }
        value["apiVersion"] = api_version.as_str().into();
        Ok(())
    }

    /// An object of this version as it is served once it is stored: what the storage version does not have is gone.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub(crate) fn pass_through_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        if self.spec.schema.is_built_in() {
            return Ok(());
        }
        self.convert_to_storage(value)?;
        self.convert_from_storage(value)
    }

    /// An object of a custom resource in another version, for those who own its fields there.
    ///
    /// # Errors
    /// When there is no such version, or it cannot be converted.
    pub(crate) fn convert_between(&self, value: &Value, from: &str, to: &str) -> Result<Value, ConversionError> {
        if self.schema_of(to).is_none() {
            return Err(ConversionError::to_unknown(to));
        }
        self.stored_schema(from, to)?;
        let mut converted = value.clone();
        converted["apiVersion"] = to.into();
        Ok(converted)
    }
}

/// The `apiVersion` of a stored object. Its fields are sorted by their names, so that it comes first.
fn stored_version(object: &Object) -> Cow<'_, str> {
    let text = object.bytes.strip_prefix(br#"{"apiVersion":""#);
    let end = text.and_then(|text| text.iter().position(|byte| matches!(byte, b'"' | b'\\')));
    match text.zip(end).map(|(text, end)| (std::str::from_utf8(&text[..end]), text[end])) {
        Some((Ok(version), b'"')) => Cow::Borrowed(version),
        _ => Cow::Owned(object.value()["apiVersion"].as_str().unwrap_or("").to_owned()),
    }
}

impl Version {
    /// How errors of upstream write a resource version that is not set: custom resources write the number in hexadecimal.
    pub(crate) fn unset_resource_version(&self) -> &'static str {
        if self.spec.schema.is_built_in() { "0" } else { "0x0" }
    }
}
