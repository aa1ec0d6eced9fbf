//! Subresources as values: what a version serves below its objects.

use std::{fmt, sync::Arc};

use serde_json::Value;
use windlass_apimachinery::field::{Errors, FieldError};

use super::{Gvk, Handler, Name};

/// A subresource.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// The name, as in paths.
    pub name: Name,
    /// The kind of its bodies; `None` for the kind of the object.
    pub kind: Option<Gvk>,
    /// The verbs of discovery.
    pub verbs: Vec<&'static str>,
    /// How it is served.
    pub serves: Serves,
}

/// How a subresource is served.
#[derive(Debug, Clone)]
pub enum Serves {
    /// The object, of which only the status changes.
    Status,
    /// The object, of which only a part changes.
    Part(Arc<dyn Part>),
    /// The number of replicas as an `autoscaling/v1` Scale.
    Scale(ScalePaths),
    /// By a handler of its own.
    Custom(Handler),
    /// Every method and path, by what serves the object.
    Proxy(Handler),
}

impl Subresource {
    /// `status`.
    #[must_use]
    pub fn status() -> Self {
        Self::of_object("status", &["get", "patch", "update"], Serves::Status)
    }

    /// `scale`.
    #[must_use]
    pub fn scale(paths: ScalePaths) -> Self {
        let kind = Gvk::of("autoscaling", "v1", "Scale");
        Self::of_kind("scale", kind, &["get", "patch", "update"], Serves::Scale(paths))
    }

    /// A subresource whose bodies are the object.
    #[must_use]
    pub fn of_object(name: &'static str, verbs: &[&'static str], serves: Serves) -> Self {
        Self { name: name.into(), kind: None, verbs: verbs.to_vec(), serves }
    }

    /// A subresource whose bodies have a kind of their own.
    #[must_use]
    pub fn of_kind(name: &'static str, kind: Gvk, verbs: &[&'static str], serves: Serves) -> Self {
        Self { name: name.into(), kind: Some(kind), verbs: verbs.to_vec(), serves }
    }
}

/// An error of one field, or a value.
pub type FieldResult<T> = Result<T, FieldError>;

/// A subresource that changes one part of the object.
pub trait Part: Send + Sync + fmt::Debug {
    /// The object with the part of `new`.
    ///
    /// # Errors
    /// When the part may not be changed so.
    fn apply(&self, new: Value, old: &Value) -> FieldResult<Value>;

    /// Validates the changed object besides its metadata; false where the whole object is validated as a new one. Both
    /// objects are in their canonical form.
    fn validate(&self, _new: &Value, _old: &Value, _errors: &mut Errors) -> bool {
        false
    }
}

/// Where a resource keeps what a Scale shows; paths are those of CustomResourceDefinitions, such as `.spec.replicas`.
#[derive(Debug, Clone)]
pub struct ScalePaths {
    /// The wanted number.
    pub spec_replicas: String,
    /// The observed number.
    pub status_replicas: String,
    /// The selector: a text, a map of labels, or a LabelSelector.
    pub selector: Option<String>,
}

impl ScalePaths {
    /// The paths of built-in controllers.
    #[must_use]
    pub fn built_in() -> Self {
        Self {
            spec_replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: Some(".spec.selector".to_owned()),
        }
    }
}

/// Sets a field of `object` to its value in `old`.
pub(crate) fn keep_field(object: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => object[field] = value.clone(),
        None => drop(object.as_object_mut().map(|fields| fields.remove(field))),
    }
}

/// Sets the metadata that clients write to that of `old`: for subresources that change the status alone.
pub(crate) fn keep_metadata(object: &mut Value, old: &Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        keep_field(&mut object["metadata"], &old["metadata"], field);
    }
}

/// The fields that `/status` does not write where it keeps the metadata as well, as [`keep_metadata`] does.
pub(crate) fn status_keeps_metadata(subresource: &str) -> Option<&'static [&'static str]> {
    (subresource == "status").then_some(&["metadata", "spec"])
}
