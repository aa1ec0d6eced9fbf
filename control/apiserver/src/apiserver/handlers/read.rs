//! `get`, and the selectors of `list` and `watch`.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;
use windlass_apimachinery::selectors::{FieldSelector, LabelSelector};

use super::watch_encoding::Selectable;
use crate::apiserver::request::{
    api_request::ApiRequest,
    error::{ApiError, ApiResult},
    request_info::RequestOptions,
    target::Target,
};
use crate::apiserver::types::{Conversions, Version};
use crate::store::Object;

/// The label and field selectors of a query.
#[derive(Debug, Clone)]
pub(crate) struct Selectors {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selectors {
    pub(crate) fn read(target: &Target, options: &RequestOptions) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(&options.labels).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let mut query = options.fields.clone();
        // `list` and `watch` of a single object are a list with its name.
        if let Some(name) = target.name.as_ref().filter(|_| options.watch) {
            query = format!("{query},metadata.name={name}");
        }
        let spec = &target.version.spec;
        let registered = !spec.selectable.is_empty() || !spec.schema.is_built_in();
        let fields = FieldSelector::parse(&query, registered.then_some(&*spec.selectable))
            .map_err(|e| ApiError::bad_request(e.to_string()))?;
        Ok(Self { labels, fields })
    }

    pub(in crate::apiserver) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether they ask for the value of one field and nothing else.
    pub(in crate::apiserver) fn is_one_field(&self) -> bool {
        self.labels.is_empty() && self.fields.is_one_exact()
    }

    /// The value that a field must have, if the selector says one.
    pub(in crate::apiserver) fn exact_field(&self, field: &str) -> Option<&str> {
        self.fields.exact(field)
    }

    /// The same by what was read of an object.
    pub(in crate::apiserver) fn match_selectable(&self, object: &Selectable) -> bool {
        let value = |field: &str| object.fields.get(field).map_or("", String::as_str);
        self.labels.matches_labels(&object.labels) && self.fields.matches_values(value)
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

impl ApiRequest {
    pub(in crate::apiserver) async fn get(&self, target: &Target) -> ApiResult {
        let object = self.fetch(target)?;
        self.answer_stored(StatusCode::OK, &target.version, &object, "").await
    }

    /// Answers with a stored object.
    pub(in crate::apiserver) async fn answer_stored(
        &self,
        code: StatusCode,
        version: &Version,
        object: &Arc<Object>,
        include: &str,
    ) -> ApiResult {
        let conversions = version.conversions_of(std::slice::from_ref(object)).await?;
        self.accept.stored(code, version, (object, &conversions), include)
    }

    /// The stored object of a target.
    ///
    /// # Errors
    /// When it does not exist.
    pub(crate) fn fetch(&self, target: &Target) -> Result<Arc<Object>, ApiError> {
        self.find(target)?.ok_or_else(|| ApiError::not_found(&target.version, target.name()))
    }

    /// The object of a target in its version.
    ///
    /// # Errors
    /// When it does not exist, or cannot be converted.
    pub(crate) async fn read_converted(&self, target: &Target) -> Result<Value, ApiError> {
        Ok(target.version.read(&self.fetch(target)?).await?)
    }

    /// The same for types that no webhook converts, as all are that are built in.
    ///
    /// # Errors
    /// When it does not exist.
    pub(crate) fn read(&self, target: &Target) -> Result<Value, ApiError> {
        Ok(target.version.decode(&*self.fetch(target)?, &Conversions::none())?)
    }

    pub(in crate::apiserver) fn find(&self, target: &Target) -> Result<Option<Arc<Object>>, ApiError> {
        Ok(self.store().get(target.id()?, &target.key()))
    }
}
