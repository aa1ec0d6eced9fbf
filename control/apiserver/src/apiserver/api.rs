//! The API server as one value: what it is made of, and what its parts share.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass_apimachinery::schema::Schema;
use windlass_kit::{metrics::Registry, slis::HealthChecks};

use super::{
    filters::{
        authorization::Authorizers, limits::Limits, request_metrics::RequestMetrics,
        token_authenticator::TokenAuthenticator,
    },
    pipeline::admission::{self, AdmissionPlugin},
    post_start_hooks::PostStartHooks,
    request::audit::AuditSink,
    types::{Catalogs, Definition, Priority, TypeSchema},
};
use crate::store::Store;

/// A document, authorized as a non-resource URL.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its path.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its content.
    pub body: Bytes,
}

/// What an API server is made of.
#[derive(Debug)]
pub struct Components {
    /// The type of `metadata`.
    pub object_meta: Arc<Schema>,
    /// The type of the options of deletions.
    pub delete_options: TypeSchema,
    /// The type of the `scale` subresource.
    pub scale: TypeSchema,
    /// The built-in resources.
    pub definitions: Vec<Definition>,
    /// The places of their group versions in discovery.
    pub priority_of: fn(&str, &str) -> Priority,
    /// Authorizers, in the order in which they are asked.
    pub authorizers: Authorizers,
    /// Admission plugins, in their order.
    pub admission: Vec<Arc<dyn AdmissionPlugin>>,
    /// Authenticators of tokens.
    pub token_authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    /// Records requests.
    pub audit: Option<Arc<dyn AuditSink>>,
    /// Documents besides discovery.
    pub documents: Vec<Document>,
}

/// The API server, apart from its sockets.
#[derive(Debug, Clone)]
pub struct Api {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) object_meta: Arc<Schema>,
    pub(super) delete_options: TypeSchema,
    pub(super) scale: TypeSchema,
    pub(super) catalogs: Catalogs,
    pub(super) authorizer: Authorizers,
    pub(super) admission: admission::Chain,
    pub(super) token_authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    pub(super) audit: Option<Arc<dyn AuditSink>>,
    pub(super) documents: Vec<Document>,
    pub(super) limits: Arc<Limits>,
    /// Held while a document of all types is built.
    pub(super) documents_turn: Semaphore,
    pub(super) metrics: Registry,
    pub(super) requests: Arc<RequestMetrics>,
    pub(super) health_checks: HealthChecks,
    pub(super) post_start_hooks: PostStartHooks,
    /// Closes upgraded connections.
    pub(super) closing: CancellationToken,
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
            catalogs: Catalogs::new(&store, components.definitions, components.priority_of),
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
            post_start_hooks: PostStartHooks::default(),
            closing: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
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

    /// What the server waits for after a start before it is ready.
    pub(crate) fn post_start_hooks(&self) -> &PostStartHooks {
        &self.inner.post_start_hooks
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(super) fn object_meta(&self) -> &Arc<Schema> {
        &self.inner.object_meta
    }

    pub(crate) fn delete_options_schema(&self) -> &TypeSchema {
        &self.inner.delete_options
    }

    pub(super) fn scale_schema(&self) -> &TypeSchema {
        &self.inner.scale
    }

    pub(crate) fn authorizer(&self) -> &Authorizers {
        &self.inner.authorizer
    }

    pub(crate) fn admission(&self) -> &admission::Chain {
        &self.inner.admission
    }
}
