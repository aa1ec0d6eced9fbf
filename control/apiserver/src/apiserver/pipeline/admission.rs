//! Admission: plugins that change or refuse a write before it is validated and stored. All mutating plugins run in
//! order, then all validating ones.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use axum::http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reinvocation::Reinvocation;
use crate::{
    apiserver::{
        request::{
            audit::Audit, error::ApiError, request_info::RequestOptions, target::Target, user::User, warnings::Warnings,
        },
        types::Catalog,
    },
    store::{Companion, Guard},
};

/// What is done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An object is created, or posted to a subresource.
    Create,
    /// An object is changed.
    Update,
    /// An object is deleted.
    Delete,
    /// A connection to an object is opened.
    Connect,
}

impl Operation {
    /// Its name in rules and reviews.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }

    /// The kind of the options of such a request.
    fn options_kind(self) -> Option<&'static str> {
        match self {
            Self::Create => Some("CreateOptions"),
            Self::Update => Some("UpdateOptions"),
            Self::Delete => Some("DeleteOptions"),
            Self::Connect => None,
        }
    }
}

/// The options of a write, where they come from.
#[derive(Debug, Clone, Copy)]
pub enum WriteOptions<'a> {
    /// The query.
    Query(&'a RequestOptions),
    /// The body of a deletion, or what stands in its place.
    Body(&'a Value),
    /// Nowhere: the server itself writes.
    None,
}

impl WriteOptions<'_> {
    /// Whether they ask that nothing is stored.
    pub(crate) fn are_of_dry_run(&self) -> bool {
        match self {
            Self::Query(options) => options.dry_run,
            Self::Body(body) => body["dryRun"].as_array().is_some_and(|stages| !stages.is_empty()),
            Self::None => false,
        }
    }
}

/// A write as plugins see it.
#[derive(Debug)]
pub struct AdmissionAttributes<'a> {
    /// The writer.
    pub user: &'a User,
    /// What is done.
    pub operation: Operation,
    /// The method of the request: a change may be an update or a patch.
    pub method: &'a Method,
    /// Resource, namespace, name and subresource.
    pub target: &'a Target,
    /// The stored object; of a subresource its parent.
    pub old: Option<&'a Value>,
    /// Warnings for the client.
    pub warnings: &'a Warnings,
    /// What is recorded of the request.
    pub audit: &'a Audit,
    /// What the client has said besides the object.
    pub options: WriteOptions<'a>,
    /// What is served.
    pub catalog: Arc<Catalog>,
    /// When the client is answered at the latest.
    pub deadline: Instant,
    /// A part of this process writes, or the agent of a node in it.
    pub is_own_component: bool,
    /// What has become of the object in this round of mutating plugins and the one before.
    pub reinvocation: Reinvocation,
}

impl AdmissionAttributes<'_> {
    /// Refuses a request whose time is over.
    ///
    /// # Errors
    /// When it is.
    pub(crate) fn check_deadline(&self) -> Result<(), ApiError> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        Err(ApiError::new(504, "Timeout", "Timeout: request did not complete within requested timeout"))
    }

    /// The options as an object of their kind.
    #[must_use]
    pub(crate) fn options_object(&self) -> Value {
        let Some(kind) = self.operation.options_kind() else { return Value::Null };
        let mut object = match self.options {
            WriteOptions::Query(options) => options.of_write(),
            WriteOptions::Body(body) => body.clone(),
            WriteOptions::None => json!({}),
        };
        object["kind"] = kind.into();
        object["apiVersion"] = "meta.k8s.io/v1".into();
        object
    }

    /// The name in errors: that of the path or the object, or what it will begin with.
    #[must_use]
    pub fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        let text = |field: &str| object["metadata"][field].as_str().filter(|text| !text.is_empty());
        let name = self.target.name.as_deref().or_else(|| text("name")).or_else(|| text("generateName"));
        name.unwrap_or("")
    }

    /// A refusal.
    #[must_use]
    pub fn forbidden(&self, object: &Value, why: &str) -> ApiError {
        ApiError::forbidden(&self.target.version, self.name(object), why)
    }

    /// Whether the write is about this resource of the core group itself.
    #[must_use]
    pub fn is_core(&self, plural: &str) -> bool {
        self.target.is("", plural)
    }
}

/// A plugin.
#[async_trait]
pub trait AdmissionPlugin: Send + Sync + fmt::Debug {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// Whether it has to do with an operation.
    fn handles(&self, operation: Operation) -> bool;

    /// Changes an object, or refuses it. For a deletion the object is null.
    ///
    /// # Errors
    /// Why the write is refused.
    async fn admit(&self, _attributes: &AdmissionAttributes<'_>, _object: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// What must still hold for other objects when a new object is stored, so that nothing changes between the plugin's
    /// decision and the write.
    fn guards(&self, _attributes: &AdmissionAttributes<'_>) -> Vec<Guard> {
        Vec::new()
    }

    /// What changes in the same transaction as the object, which becomes `new`, or `None` when it is removed; or what
    /// refuses the write when others came before. Called for every write that is admitted.
    fn companions(&self, _attributes: &AdmissionAttributes<'_>, _new: Option<&Value>) -> Vec<Companion> {
        Vec::new()
    }

    /// Refuses an object that all mutating plugins have seen. For a deletion the object is null.
    ///
    /// # Errors
    /// Why the write is refused.
    async fn validate(&self, _attributes: &AdmissionAttributes<'_>, _object: &Value) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The plugins in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(Vec<Arc<dyn AdmissionPlugin>>);

impl Chain {
    /// A chain of plugins.
    pub(crate) fn new(plugins: Vec<Arc<dyn AdmissionPlugin>>) -> Self {
        Self(plugins)
    }

    fn handling(&self, operation: Operation) -> impl Iterator<Item = &Arc<dyn AdmissionPlugin>> {
        self.0.iter().filter(move |plugin| plugin.handles(operation))
    }

    /// Runs the mutating plugins, and all of them once more if a webhook or policy has changed something.
    ///
    /// # Errors
    /// The first refusal.
    pub(crate) async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        self.admit_once(attributes, object).await?;
        if attributes.reinvocation.begin_second_round() {
            self.admit_once(attributes, object).await?;
        }
        Ok(())
    }

    async fn admit_once(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        for plugin in self.handling(attributes.operation) {
            plugin.admit(attributes, object).await?;
        }
        Ok(())
    }

    /// What the plugins rely on.
    pub(crate) fn guards(&self, attributes: &AdmissionAttributes<'_>) -> Vec<Guard> {
        self.handling(attributes.operation).flat_map(|plugin| plugin.guards(attributes)).collect()
    }

    /// What changes with an object that becomes `new`.
    pub(crate) fn companions(&self, attributes: &AdmissionAttributes<'_>, new: Option<&Value>) -> Vec<Companion> {
        self.handling(attributes.operation).flat_map(|plugin| plugin.companions(attributes, new)).collect()
    }

    /// Runs the validating plugins.
    ///
    /// # Errors
    /// The first refusal.
    pub(crate) async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        for plugin in self.handling(attributes.operation) {
            plugin.validate(attributes, object).await?;
        }
        Ok(())
    }
}
