//! The other versions of a resource, for those who own fields of its objects in them.
//!
//! Who owns what is decided without waiting. Where a webhook converts, what it has not been asked yet counts as failed and is
//! noted; it is asked then, and the decision is made again with its answers.

use std::{collections::BTreeMap, mem, sync::Arc};

use parking_lot::Mutex;
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
    by_webhook: Mutex<ByWebhook>,
}

/// An object as JSON, and the version in which it is wanted.
type Question = (String, String);

/// What a webhook converts for one request.
#[derive(Debug, Default)]
struct ByWebhook {
    answers: BTreeMap<Question, Result<Value, ConvertError>>,
    /// What it must be asked: the object, its version, and the one that is wanted.
    open: Vec<(Value, String, String)>,
}

impl FieldVersions {
    pub(in crate::apiserver) fn new(version: &Arc<Version>, catalog: Arc<Catalog>, object_meta: &Arc<Schema>) -> Self {
        Self {
            version: Arc::clone(version),
            catalog,
            object_meta: Arc::clone(object_meta),
            by_webhook: Mutex::default(),
        }
    }

    /// Whether decisions may have to be made again, with what a webhook answers.
    pub(super) fn may_wait(&self) -> bool {
        self.version.converts_by_webhook()
    }

    /// Asks what is open; whether there was anything.
    pub(super) async fn ask(&self) -> bool {
        let open = mem::take(&mut self.by_webhook.lock().open);
        let is_open = !open.is_empty();
        for (object, from, to) in open {
            let converted = self.version.convert_between(&object, &from, &to).await;
            let converted = converted.map_err(|error| ConvertError::Failed(error.to_string()));
            self.by_webhook.lock().answers.insert((object.to_string(), to), converted);
        }
        is_open
    }

    fn by_webhook(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConvertError> {
        let mut state = self.by_webhook.lock();
        if let Some(answer) = state.answers.get(&(object.to_string(), to.to_owned())) {
            return answer.clone();
        }
        state.open.push((object.clone(), from.to_owned(), to.to_owned()));
        Err(ConvertError::Failed(format!("the webhook was not asked for {to} yet")))
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
            let known = self.version.check_versions(from, to);
            known.map_err(|error| ConvertError::Failed(error.to_string()))?;
            if self.version.converts_by_webhook() && from != to {
                return self.by_webhook(object, from, to);
            }
            let mut renamed = object.clone();
            renamed["apiVersion"] = to.into();
            return Ok(renamed);
        }
        let (Some(from), Some(to)) = (self.built_in(from), self.built_in(to)) else {
            return Err(ConvertError::NoVersion);
        };
        let mut object = object.clone();
        let converted = from.convert_built_in(&mut object, to);
        converted.map(|()| object).map_err(|error| ConvertError::Failed(error.to_string()))
    }
}
