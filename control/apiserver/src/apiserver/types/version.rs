//! A version of a resource: the form in which its objects are served.

use std::{borrow::Cow, fmt, ops::Deref, sync::Arc};

use axum::body::Bytes;
use serde_json::Value;

use windlass_apimachinery::selectors::SelectableField;

use super::conversion::{restore_revision, take_revision};
use super::conversion_cache::{ConversionCache, Stages};
use super::list_item;
use super::{
    Conversion, ConversionError, Conversions, Gvk, Name, Resource, Serves, Storage, Subresource, Table, TypeSchema,
};
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
    /// Objects that a webhook has converted to this version.
    pub(super) cache: ConversionCache,
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
        self.stores(&self.spec.conversion) && self.spec.schema.is_built_in()
    }

    /// Whether objects of the resource are stored in this version, in the form that clients get or, of custom resources, one
    /// that is completed for them.
    #[must_use]
    pub fn is_stored_form(&self) -> bool {
        let own = self.gvk.api_version();
        let is_stored = matches!(&self.storage, Storage::Store { api_version, .. } if *api_version == own);
        self.is_served_as_stored() || (!self.spec.schema.is_built_in() && is_stored)
    }

    /// The objects among these that are not stored in this version.
    ///
    /// # Errors
    /// When one is stored in a version that the resource does not have.
    pub fn stored_otherwise<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>, ConversionError> {
        if self.spec.schema.is_built_in() {
            return Ok(Vec::new());
        }
        let (own, mut foreign) = (self.gvk.api_version(), Vec::new());
        for object in objects {
            let stored = stored_version(object);
            if stored == own {
                continue;
            }
            if self.schema_of(&stored).is_none() {
                return Err(ConversionError::from_unknown(&stored));
            }
            foreign.push(Arc::clone(object));
        }
        Ok(foreign)
    }

    /// What is needed to [read](Self::decode) objects that are [not stored in this version](Self::stored_otherwise): a webhook
    /// may have to convert them.
    ///
    /// # Errors
    /// When one of them cannot be converted.
    pub async fn conversions(&self, foreign: Vec<Arc<Object>>) -> Result<Conversions, ConversionError> {
        match &self.spec.conversion {
            Conversion::Webhook(converter) if !foreign.is_empty() => {
                self.cache.convert(&**converter, self, foreign, (&self.gvk.api_version(), self.serial)).await
            }
            _ => Ok(Conversions::none()),
        }
    }

    /// The same for a few objects, wherever they are stored.
    ///
    /// # Errors
    /// When one of them cannot be converted.
    pub async fn conversions_of(&self, objects: &[Arc<Object>]) -> Result<Conversions, ConversionError> {
        self.conversions(self.stored_otherwise(objects)?).await
    }

    /// A stored object in this version, which a webhook may have to convert.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub async fn read(&self, object: &Arc<Object>) -> Result<Value, ConversionError> {
        self.decode(object, &self.conversions_of(std::slice::from_ref(object)).await?)
    }

    /// A stored object in this version.
    ///
    /// # Errors
    /// When it cannot be converted, or its conversion is not among those given.
    pub fn decode(&self, object: &Object, conversions: &Conversions) -> Result<Value, ConversionError> {
        if let Some(converted) = conversions.get(self.serial, object) {
            return Ok(converted.clone());
        }
        let mut value = object.value();
        self.convert_from_storage(&mut value)?;
        Ok(value)
    }

    /// The bytes of a stored object in this version.
    ///
    /// # Errors
    /// When it cannot be converted, or its conversion is not among those given.
    pub fn encode(&self, object: &Object, conversions: &Conversions) -> Result<Bytes, ConversionError> {
        if self.is_served_as_stored() {
            return Ok(object.bytes.clone());
        }
        Ok(serde_json::to_vec(&self.decode(object, conversions)?).unwrap_or_default().into())
    }

    /// Appends a stored object as an item of a list in this version.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(crate) fn push_item(
        &self,
        out: &mut Vec<u8>,
        object: &Object,
        conversions: &Conversions,
    ) -> Result<(), ConversionError> {
        let bytes = self.encode(object, conversions)?;
        if self.spec.schema.is_built_in() {
            list_item::push_without_type_meta(out, &bytes);
        } else {
            out.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Whether a stored object would be written again as it is: it may be in a version that was stored before.
    #[must_use]
    pub fn is_in_storage_version(&self, object: &Object) -> bool {
        let Storage::Store { api_version, .. } = &self.storage else { return true };
        self.spec.schema.is_built_in() || stored_version(object) == *api_version
    }

    /// Converts a stored object to this version, without a webhook. Custom objects are pruned and get defaults by the schema of
    /// the version in which they are stored, which may have changed since, and are pruned by that of this version. As upstream,
    /// they get no defaults of this version.
    ///
    /// # Errors
    /// When it cannot be converted, or a webhook would have to.
    pub(crate) fn convert_from_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        match &self.spec.conversion {
            Conversion::None => {}
            Conversion::Rename | Conversion::Webhook(_) => {
                let (from, to) = (value["apiVersion"].as_str().unwrap_or("").to_owned(), self.gvk.api_version());
                if from != to {
                    let stored = self.schema_of(&from).ok_or_else(|| ConversionError::from_unknown(&from))?;
                    if matches!(self.spec.conversion, Conversion::Webhook(_)) {
                        return Err(ConversionError::not_converted(&from));
                    }
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
    pub(crate) async fn convert_to_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        let Storage::Store { api_version, .. } = &self.storage else { return Ok(()) };
        match &self.spec.conversion {
            Conversion::None => return Ok(()),
            Conversion::Rename | Conversion::Webhook(_) => {
                let own = self.gvk.api_version();
                if own == *api_version {
                    return Ok(());
                }
                self.convert_stored(value, &own, api_version).await?;
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
    pub(crate) async fn pass_through_storage(&self, value: &mut Value) -> Result<(), ConversionError> {
        let Storage::Store { api_version, .. } = &self.storage else { return Ok(()) };
        if self.spec.schema.is_built_in() {
            return Ok(());
        }
        self.convert_to_storage(value).await?;
        let own = self.gvk.api_version();
        if matches!(self.spec.conversion, Conversion::Webhook(_)) && own != *api_version {
            self.convert_stored(value, api_version, &own).await?;
            self.spec.schema.prune_alone(value);
            return Ok(());
        }
        self.convert_from_storage(value)
    }

    /// An object of a built-in resource in another of its versions.
    ///
    /// # Errors
    /// When the versions are those of a custom resource.
    pub(crate) fn convert_built_in(&self, object: &mut Value, to: &Self) -> Result<(), ConversionError> {
        if let Conversion::Fn { to_storage, .. } = &self.spec.conversion {
            to_storage(object);
        }
        if let Storage::Store { api_version, .. } = &self.storage {
            object["apiVersion"] = api_version.as_str().into();
        }
        to.convert_from_storage(object)
    }

    /// An object of a custom resource in another version, as it comes from the converter.
    ///
    /// # Errors
    /// When there is no such version, or it cannot be converted.
    pub(crate) async fn convert_between(&self, value: &Value, from: &str, to: &str) -> Result<Value, ConversionError> {
        self.check_versions(from, to)?;
        if let Conversion::Webhook(converter) = &self.spec.conversion
            && from != to
        {
            let converted = converter.convert(vec![value.clone()], to).await?.pop();
            return converted.ok_or_else(|| ConversionError::not_converted(from));
        }
        let mut converted = value.clone();
        converted["apiVersion"] = to.into();
        Ok(converted)
    }

    /// The same on the way to storage or from there.
    async fn convert_stored(&self, value: &mut Value, from: &str, to: &str) -> Result<(), ConversionError> {
        let revision = take_revision(value);
        *value = self.convert_between(value, from, to).await?;
        restore_revision(value, revision);
        Ok(())
    }

    /// Whether the custom resource has both versions.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn check_versions(&self, from: &str, to: &str) -> Result<(), ConversionError> {
        self.schema_of(to).ok_or_else(|| ConversionError::to_unknown(to))?;
        self.schema_of(from).ok_or_else(|| ConversionError::from_unknown(from))?;
        Ok(())
    }

    /// Whether another program is asked to convert between versions, so that it takes time.
    pub(crate) fn converts_by_webhook(&self) -> bool {
        matches!(self.spec.conversion, Conversion::Webhook(_))
    }
}

impl Stages for Version {
    fn before(&self, object: &Object) -> Result<Value, ConversionError> {
        let mut value = object.value();
        let from = value["apiVersion"].as_str().unwrap_or("").to_owned();
        self.schema_of(&from).ok_or_else(|| ConversionError::from_unknown(&from))?.complete_stored(&mut value);
        Ok(value)
    }

    fn after(&self, converted: &mut Value) {
        self.spec.schema.prune_alone(converted);
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
