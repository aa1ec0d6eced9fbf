//! The Kubernetes API over the store: one set of handlers for all types of the catalog.
//!
//! A request passes the filters of `chain` (authentication, audit, impersonation, limits, authorization), which know
//! what its `request_info` leads to (`target`), and then health, discovery or the handler of a resource; every write goes through
//! `pipeline`. Knows no kind: what one kind does differs in its `Strategy`, its subresources and in admission plugins,
//! which stand in `kinds` and `plugin` and are not imported here.

mod admission;
mod audit;
mod authentication;
mod authorization;
mod body_guard;
mod chain;
mod commit;
mod decode;
mod delete;
mod discovery;
mod dispatch;
mod documents;
mod error;
pub(crate) mod field_manager;
mod field_versions;
pub(crate) mod generate;
mod health;
mod impersonation;
mod kubelet_client;
mod limits;
mod list;
mod metadata;
mod metrics_page;
mod negotiation;
mod panics;
mod pipeline;
mod preconditions;
pub(crate) mod proxy;
mod read;
mod repair;
pub(crate) mod request_info;
mod request_metrics;
mod scale;
mod strategy;
pub mod subresource;
mod target;
pub mod types;
mod user;
pub(crate) mod validation;
mod virtual_resource;
mod warnings;
mod watch;
mod watch_encoding;
mod websocket;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::Request,
    response::{IntoResponse as _, Response},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass_apimachinery::schema::Schema;
use windlass_kit::{metrics::Registry, slis::HealthChecks};

pub use admission::{AdmissionAttributes, AdmissionPlugin, Operation};
pub use audit::{Audit, AuditEvent, AuditLevel, AuditRule, AuditSink, AuditStage, ObjectReference};
#[cfg(test)]
pub(crate) use authentication::protocol_token;
pub use authentication::{AuditNote, Authenticated, Refused, Remarks, TokenAuthenticator};
pub(crate) use authentication::{CREDENTIAL_ID, protocols_without_token};
pub(crate) use authorization::forbidden;
pub use authorization::{
    Attributes, Authorizer, Authorizers, Decision, NonResourceRule, PrivilegedGroups, ResourceRule, Rules,
};
pub use chain::ApiRequest;
pub(crate) use chain::ApiResult;
pub(crate) use delete::DeleteOptions;
pub use documents::Document;
pub use error::ApiError;
pub(crate) use error::aggregate;
pub use kubelet_client::KubeletClient;
pub(crate) use negotiation::{Representation, metadata_of, table};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use pipeline::default;
pub(crate) use pipeline::{Draft, Mutated, Mutation, Scope};
pub(crate) use read::Selectors;
pub use request_info::RequestOptions;
pub use strategy::{FirstDeletion, Strategy, Tolerance};
pub use target::Target;
pub use user::User;
pub use validation::{Cause, Errors, FieldError};
pub use virtual_resource::{BodyLimits, VirtualResource};
pub use warnings::Warnings;

use crate::store::Store;
use limits::Limits;
use request_metrics::RequestMetrics;
use types::{Catalogs, Definition, TypeSchema};

pub use windlass_kit::build_info::VERSION;

/// What an API server is made of.
#[derive(Debug)]
pub struct Components {
    /// The type of `metadata`.
    pub object_meta: Arc<Schema>,
    /// The type of the options of deletions.
    pub delete_options: TypeSchema,
    /// The type of the `scale` subresource.
    pub scale: TypeSchema,
    /// The built-in resources, in the order of discovery.
    pub definitions: Vec<Definition>,
    /// Authorizers, in the order in which they are asked.
    pub authorizers: Authorizers,
    /// Admission plugins, in their order.
    pub admission: Vec<Arc<dyn AdmissionPlugin>>,
    /// Authenticators of tokens.
    pub token_authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    /// Records requests.
    pub audit: Option<Arc<dyn AuditSink>>,
    /// Documents beside discovery.
    pub documents: Vec<Document>,
}

/// The API server, apart from its sockets.
#[derive(Debug, Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    object_meta: Arc<Schema>,
    delete_options: TypeSchema,
    scale: TypeSchema,
    catalogs: Catalogs,
    authorizer: Authorizers,
    admission: admission::Chain,
    token_authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    audit: Option<Arc<dyn AuditSink>>,
    documents: Vec<Document>,
    limits: Arc<Limits>,
    /// Held by who makes a document of all types.
    documents_turn: Semaphore,
    metrics: Registry,
    requests: Arc<RequestMetrics>,
    health_checks: HealthChecks,
    /// Closes upgraded connections.
    closing: CancellationToken,
}

impl Api {
    /// An API over `store`.
    #[must_use]
    pub fn new(store: Store, components: Components) -> Self {
        let (metrics, limits) = (Registry::default(), Arc::new(Limits::default()));
        let requests = metrics.of::<RequestMetrics>();
        let counted = Arc::clone(&limits);
        metrics.register(move |page| counted.write(page));
        let inner = Inner {
            catalogs: Catalogs::new(&store, components.definitions),
            store,
            object_meta: components.object_meta,
            delete_options: components.delete_options,
            scale: components.scale,
            authorizer: components.authorizers,
            admission: admission::Chain::new(components.admission),
            token_authenticators: components.token_authenticators,
            audit: components.audit,
            documents: components.documents,
            limits,
            documents_turn: Semaphore::new(1),
            metrics,
            requests,
            health_checks: HealthChecks::default(),
            closing: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A router whose requests carry a [`User`] extension, or that of a client certificate, or a token; without any of
    /// them they are anonymous.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// What `/metrics` shows: parts of this process register with it.
    #[must_use]
    pub fn metrics(&self) -> &Registry {
        &self.inner.metrics
    }

    /// Closes upgraded connections, which outlive their requests.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// What is served, as it changes.
    #[must_use]
    pub fn catalogs(&self) -> &Catalogs {
        &self.inner.catalogs
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    fn object_meta(&self) -> &Arc<Schema> {
        &self.inner.object_meta
    }

    pub(crate) fn delete_options_schema(&self) -> &TypeSchema {
        &self.inner.delete_options
    }

    fn scale_schema(&self) -> &TypeSchema {
        &self.inner.scale
    }

    pub(crate) fn authorizer(&self) -> &Authorizers {
        &self.inner.authorizer
    }

    pub(crate) fn admission(&self) -> &admission::Chain {
        &self.inner.admission
    }
}

async fn handle(State(api): State<Api>, request: Request<Body>) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answered = panics::caught(chain::handle(api, request)).await;
    answered.unwrap_or_else(|why| panics::answer(&method, &path, &why).into_response())
}
