//! Finds the handler of an authorized request: discovery, or a resource of the catalog and its subresources.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    http::Method,
};
use windlass_kit::{blocking::COMPUTE, serve::LongRunning};

use super::{discovery, metrics_page, virtual_resource::VirtualResource};
use crate::apiserver::{
    filters::panics,
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::{RequestInfo, RequestOptions},
        target::{Route, Target},
    },
    types::{Catalog, Serves, Subresource},
};

/// The largest body of most requests.
const MAX_BODY_BYTES: usize = crate::store::MAX_OBJECT_BYTES;

impl ApiRequest {
    pub(in crate::apiserver) async fn dispatch(&self, route: &Route, body: Body) -> ApiResult {
        let Route { info, options, target, extension } = route;
        match info.path.as_str() {
            metrics_page::PATH => return self.metrics_page(),
            metrics_page::SLIS_PATH => return self.slis_page(),
            _ => {}
        }
        if let Some(extension) = extension {
            return self.aggregate(extension, route, body).await;
        }
        if !info.is_resource {
            if let Some(answer) = self.document(&info.path) {
                return answer;
            }
            let catalog = self.api.catalogs().current();
            if discovery::is_heavy(&info.path) {
                return self.in_time(self.heavy_discovery(catalog, info.clone(), options.clone())).await;
            }
            let answer = discovery::answer((&catalog, &[]), info, &self.method, &self.headers, options);
            return answer.unwrap_or_else(|| Err(ApiError::unknown_path()));
        }
        let target = target.as_ref().ok_or_else(ApiError::unknown_path)?;
        let measured = self.measured(info, options);
        self.warnings.extend(target.version.spec.deprecation_warning.clone());
        let served = panics::caught(self.in_time(self.serve(target, info, options, body))).await;
        let answer = served.unwrap_or_else(|why| {
            let error = panics::answer(&self.method, &info.path, &why);
            self.audit.panicked(&error, &why);
            Err(error)
        });
        match answer {
            Ok(response) => Ok(measured.answered(response)),
            Err(error) => {
                measured.refused(&error);
                Err(error)
            }
        }
    }

    /// Discovery whose answer takes long to make: one at a time, however many ask, and not on the threads on which the API
    /// and the node answer.
    async fn heavy_discovery(&self, catalog: Arc<Catalog>, info: RequestInfo, options: RequestOptions) -> ApiResult {
        // They are waited for by nobody else.
        let others = match info.path.as_str() {
            discovery::OPENAPI_V2 => self.extension_documents(&catalog).await,
            _ => Vec::new(),
        };
        let _turn = self.api.inner.documents_turn.acquire().await.map_err(ApiError::internal)?;
        let (method, headers) = (self.method.clone(), self.headers.clone());
        let make = move || discovery::answer((&catalog, &others), &info, &method, &headers, &options);
        let made = COMPUTE.call(make).await.map_err(ApiError::internal)?;
        made.unwrap_or_else(|| Err(ApiError::unknown_path()))
    }

    async fn serve(&self, target: &Target, info: &RequestInfo, options: &RequestOptions, body: Body) -> ApiResult {
        let verb = info.verb.as_str();
        if !allows(target, verb, &self.method) {
            return Err(ApiError::method_not_allowed_here());
        }
        let (served, computed) = (target.served(), target.version.as_virtual()?);
        if let Some(locate) = served.map(Subresource::locate).transpose()?.flatten() {
            let mut answer = self.proxy(target, info, locate, body).await?;
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        let custom = served.map(Subresource::handler).transpose()?.flatten();
        // Since Kubernetes 1.35 a GET that upgrades a connection needs more than the right to get.
        if verb == "get" && custom.is_some_and(|handler| handler.connects()) {
            self.authorize_create(target)?;
        }
        let long_running = verb == "watch" || custom.is_some_and(|handler| handler.is_long_running());
        let has_protobuf = target.version.spec.schema.is_built_in();
        let accept = if has_protobuf { self.accept } else { self.accept.without_protobuf() };
        if !accept.is_acceptable && (verb == "watch" || !long_running) {
            return Err(ApiError::not_acceptable(has_protobuf));
        }
        // What is posted to be answered has no table.
        let is_answered = verb == "create" && (computed.is_some() || custom.is_some());
        if is_answered && !long_running && !accept.takes_objects {
            return Err(ApiError::not_acceptable(has_protobuf));
        }
        if !custom.is_some_and(|handler| handler.connects()) {
            options.check(verb)?;
        }
        if let Some(limits) = computed.and_then(VirtualResource::body_limits) {
            // Everybody may send these: a slow body costs its sender a place, and others none.
            let of_user = self.api.inner.limits.begin_review(self.class, &self.user)?;
            let body = tokio::time::timeout(limits.timeout, self.body(body, limits.max_bytes)).await;
            let body = body.map_err(|_| ApiError::new(408, "Timeout", "the body did not come in time"))??;
            let _permit = self.api.inner.limits.acquire_review(of_user.as_ref())?;
            return self.route(target, verb, options, &body).await;
        }
        // Read before the in-flight limit applies: a slow body must not block others.
        let body = if self.method == Method::GET { Bytes::new() } else { self.body(body, MAX_BODY_BYTES).await? };
        // Long-running requests are not counted.
        if long_running {
            let mut answer = self.route(target, verb, options, &body).await?;
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        let _permit = self.api.inner.limits.acquire(self.class, &self.method).await?;
        self.route(target, verb, options, &body).await
    }

    async fn route(&self, target: &Target, verb: &str, options: &RequestOptions, body: &Bytes) -> ApiResult {
        if self.accept.representation.is_table() {
            options.check_table()?;
        }
        if let Some(handler) = target.version.as_virtual()? {
            return handler.handle(self, target, options, body).await;
        }
        let Some(subresource) = target.served() else {
            return match verb {
                "get" => self.get(target).await,
                "list" => self.list(target, options).await,
                "watch" => self.watch(target, options),
                "create" => self.create(target, options, body).await,
                "update" => self.update(target, options, body).await,
                "patch" => self.patch(target, options, body).await,
                "delete" => self.delete(target, options, body).await,
                "deletecollection" => self.delete_collection(target, options, body).await,
                _ => Err(ApiError::method_not_allowed_here()),
            };
        };
        if let Some(handler) = subresource.handler()? {
            return handler.handle(self, target, options, body).await;
        }
        match (&subresource.serves, verb) {
            (Serves::Scale(paths), "get") => self.get_scale(target, paths).await,
            (Serves::Scale(paths), _) => self.scale(target, paths, options, body).await,
            (Serves::Status | Serves::Part(_), "get") => self.get(target).await,
            (Serves::Status | Serves::Part(_), "update") => self.update(target, options, body).await,
            (Serves::Status | Serves::Part(_), "patch") => self.patch(target, options, body).await,
            _ => Err(ApiError::method_not_allowed_here()),
        }
    }
}

/// Whether a target has a verb, and the method fits its path.
fn allows(target: &Target, verb: &str, method: &Method) -> bool {
    match target.served() {
        Some(Subresource { serves: Serves::Proxy(_), .. }) => *method != Method::CONNECT && *method != Method::TRACE,
        Some(subresource) => subresource.verbs.contains(&verb),
        // Also where the path has the verb.
        None if verb == "watch" => {
            matches!(*method, Method::GET | Method::HEAD) && target.version.verbs.contains(&verb)
        }
        // Only collections are posted to.
        None if method == Method::POST && target.name.is_some() => false,
        None if matches!(verb, "update" | "patch") && target.name.is_none() => false,
        None => target.version.verbs.contains(&verb),
    }
}
