//! The filters that every request passes, in this order: authentication, the audit hook, impersonation, the class of its
//! limits, authorization. What the request leads to is looked up before them, once: they and the handler know the same
//! [`Route`].

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, Method, Uri, header},
    response::{IntoResponse as _, Response},
};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{self, BodyError, BodyStreaming, Caller, headers};

use super::{
    Api,
    audit::{self, Audit, Sent},
    authentication::Credentials,
    authorization::forbidden,
    error::ApiError,
    health,
    limits::Class,
    negotiation::Accept,
    request_info::{self, RequestInfo, RequestOptions},
    request_metrics::Measured,
    target::{Route, Target},
    user::User,
    warnings::Warnings,
};
use crate::store::Store;

/// The response of a handler.
pub(crate) type ApiResult = Result<Response, ApiError>;

/// One request.
#[derive(Debug)]
pub struct ApiRequest {
    pub(crate) api: Api,
    /// Whom the request acts as.
    pub(crate) user: User,
    pub(super) credentials: Credentials,
    /// What is recorded of the request.
    pub(crate) audit: Audit,
    /// What the client is warned of.
    pub(crate) warnings: Warnings,
    pub(super) class: Class,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) accept: Accept,
    pub(crate) content_type: String,
    pub(crate) headers: HeaderMap,
    /// The client's address; `None` for one in this process.
    pub(super) client: Option<IpAddr>,
    /// The client's connection, for the handler that upgrades it.
    upgrade: Mutex<Option<OnUpgrade>>,
    body_streaming: BodyStreaming,
    received: Instant,
}

/// A header that grants nothing; empty without one.
pub(crate) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers::shown(headers, name.as_str()).into_owned()
}

/// Passes a request through the filters to its handler.
pub(super) async fn handle(api: Api, request: Request) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let route = match read(&api, &parts.uri, &parts.method) {
        Ok(route) => route,
        Err(error) => return error.into_response(),
    };
    let id = audit::id_of(&parts.headers);
    let address = parts.extensions.get::<Caller>().and_then(Caller::address).map(|address| address.ip());
    let sent = Sent { uri: &parts.uri, headers: &parts.headers, address };
    let begin = |user: &User| Audit::begin(api.inner.audit.as_ref(), &id, user, &route.attributes(), sent);
    let (caller, credentials, remarks) = match api.authenticate(&parts.extensions, &parts.headers) {
        Ok(known) => known,
        Err(error) => {
            let audit = begin(&User::default());
            audit.refused(&error);
            let mut response = error.into_response();
            audit::name_in(&mut response, &id);
            audit.unauthenticated(&response);
            return response;
        }
    };
    let audit = begin(&caller);
    if let Some((key, value)) = remarks.audit {
        audit.annotate(key, value);
    }
    let warnings = Warnings::default();
    warnings.extend(remarks.warning.map(str::to_owned));
    let response = match api.impersonate(&caller, &mut parts.headers) {
        Err(error) => {
            audit.refused(&error);
            let mut response = error.into_response();
            warnings.write(&mut response);
            response
        }
        Ok(impersonated) => {
            if let Some(user) = &impersonated {
                audit.impersonates(user);
            }
            let upgrade = Mutex::new(parts.extensions.remove::<OnUpgrade>());
            let request = ApiRequest {
                client: address.map(|address| address.to_canonical()),
                body_streaming: parts.extensions.remove().unwrap_or_default(),
                class: Class::of(&caller, credentials),
                user: impersonated.unwrap_or_else(|| caller.clone()),
                credentials,
                accept: Accept::read(&parts.headers).recorded(audit.wants_response()),
                audit: audit.clone(),
                warnings,
                content_type: header_text(&parts.headers, header::CONTENT_TYPE),
                method: parts.method,
                uri: parts.uri,
                headers: parts.headers,
                upgrade,
                received: started,
                api,
            };
            let response = request.respond(&route, body).await;
            let mut response = response.unwrap_or_else(|error| {
                request.audit.refused(&error);
                request.accept.error(error)
            });
            request.warnings.write(&mut response);
            response
        }
    };
    let mut response = audit.answered(response);
    audit::name_in(&mut response, &id);
    // Bodies and queries may hold secrets and are not logged.
    tracing::debug!(
        user = caller.name,
        verb = route.info.verb,
        path = route.info.path,
        status = response.status().as_u16(),
        microseconds = started.elapsed().as_micros(),
        "handled request"
    );
    response
}

/// What a request is about, and where it leads.
fn read(api: &Api, uri: &Uri, method: &Method) -> Result<Route, ApiError> {
    let segments = request_info::segments(uri.path())
        .ok_or_else(|| ApiError::bad_request("the path holds an escape that cannot be read"))?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let none = Uri::default();
    let mut options = RequestOptions::parse(if request_info::is_proxied(&segments) { &none } else { uri })?;
    let info = RequestInfo::parse(&segments, method, &options);
    options.watch |= info.verb == "watch";
    Ok(Route::new(&api.catalogs().current(), info, options))
}

impl ApiRequest {
    /// Authorizes the request and hands it to its handler.
    async fn respond(&self, route: &Route, body: Body) -> ApiResult {
        let path = route.info.path.trim_start_matches('/');
        // Health as a whole is open to everybody, but not its single checks.
        if let Some(answer) = self.health(path).filter(|_| !path.contains('/')) {
            return Ok(answer);
        }
        if self.user.is_anonymous() && path != "version" {
            return Err(ApiError::unauthorized());
        }
        self.authorize(route)?;
        if let Some(answer) = self.health(path) {
            return Ok(answer);
        }
        self.dispatch(route, body).await
    }

    /// Refuses a request that the user is not authorized for.
    fn authorize(&self, route: &Route) -> Result<(), ApiError> {
        let attributes = route.attributes();
        let authorizer = self.api.authorizer();
        let decided = authorizer.authorize(&self.user, &attributes);
        self.audit.annotate("authorization.k8s.io/decision", if decided.is_ok() { "allow" } else { "forbid" });
        self.audit.annotate_with("authorization.k8s.io/reason", || match &decided {
            Ok(()) => authorizer.reason(&self.user, &attributes),
            Err(why) => why.clone(),
        });
        decided.map_err(|why| forbidden(&self.user, &attributes, &why))
    }

    /// Refuses a request that does more than its verb says, such as an update that creates.
    pub(super) fn authorize_create(&self, target: &Target) -> Result<(), ApiError> {
        let attributes = target.attributes("create");
        let decided = self.api.authorizer().authorize(&self.user, &attributes);
        decided.map_err(|why| forbidden(&self.user, &attributes, &why))
    }

    /// The store.
    pub(crate) fn store(&self) -> &Store {
        self.api.store()
    }

    /// Whether the caller was authenticated by a client certificate.
    fn is_by_certificate(&self) -> bool {
        self.credentials == Credentials::Certificate
    }

    /// The client's connection, once.
    fn take_upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The client's connection, if the request asks to upgrade it.
    ///
    /// # Errors
    /// When a page of another origin uses the client certificate of its browser.
    pub(crate) fn requested_upgrade(&self) -> Result<Option<OnUpgrade>, ApiError> {
        let asks = headers::items(&self.headers, "connection").any(|word| word.eq_ignore_ascii_case("upgrade"));
        let upgrade = self.take_upgrade().filter(|_| asks);
        if upgrade.is_some() && self.is_by_certificate() && !serve::is_own_origin(&self.headers) {
            let why = "a page of another origin may not use the client certificate of its browser here";
            return Err(ApiError::new(403, "Forbidden", why));
        }
        Ok(upgrade)
    }

    /// The body is passed on as it arrives: the limits of bodies that are collected do not hold for it.
    pub(super) fn begin_streaming(&self) {
        self.body_streaming.begin();
    }

    /// Ends upgraded connections.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.api.inner.closing
    }

    /// Reads the body.
    ///
    /// # Errors
    /// When it is too large or does not arrive.
    pub(super) async fn body(&self, body: Body, max_bytes: usize) -> Result<Bytes, ApiError> {
        let collected = Limited::new(body, max_bytes).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                return ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {max_bytes}"),
                );
            }
            match BodyError::of(error.as_ref()) {
                Some(BodyError::Timeout) => ApiError::new(408, "Timeout", BodyError::Timeout.to_string()),
                Some(BodyError::Busy) => ApiError::too_many_requests(),
                None => ApiError::bad_request(format!("the body could not be read: {error}")),
            }
        })
    }

    /// Serves the health endpoints.
    fn health(&self, path: &str) -> Option<Response> {
        let (base, check) = path.split_once('/').map_or((path, None), |(b, c)| (b, Some(c)));
        let verbose = self.uri.query().is_some_and(|q| q.contains("verbose"));
        let answer = health::answer(base, check, verbose, &self.store().health(), &self.api.inner.health_checks)?;
        self.api.inner.requests.health(&format!("/{path}"), answer.status().as_u16(), self.received.elapsed());
        Some(answer)
    }

    /// What is counted of the request, which is about something that is served.
    pub(super) fn measured(&self, info: &RequestInfo, options: &RequestOptions) -> Measured {
        Measured::new(&self.api.inner.requests, self.received, (info, options), (&self.method, &self.headers))
    }
}
