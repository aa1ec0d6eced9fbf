//! The filters that every request passes, in this order: authentication, the audit hook, impersonation, the class of its
//! limits, authorization. What the request leads to is looked up before them, once: they and the handler know the same
//! [`Route`].

use std::time::{Duration, Instant};

use axum::{
    body::Body,
    extract::Request,
    http::{Method, Uri, header},
    response::{IntoResponse as _, Response},
};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use windlass_kit::serve::{Caller, headers};

use super::{authentication::Unauthenticated, authorization::forbidden, limits::Class};
use crate::apiserver::{
    Api,
    request::{
        api_request::ApiRequest,
        audit::{self, Audit, Sent},
        error::{ApiError, ApiResult},
        negotiation::Accept,
        request_info::{self, RequestInfo, RequestOptions},
        target::{Route, Target},
        user::User,
        warnings::Warnings,
    },
};

/// Passes a request through the filters to its handler.
pub(in crate::apiserver) async fn handle(api: Api, request: Request) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let (route, timeout) = match read(&api, &parts.uri, &parts.method) {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    let id = audit::id_of(&parts.headers);
    let address = parts.extensions.get::<Caller>().and_then(Caller::address).map(|address| address.ip());
    let sent = Sent { uri: &parts.uri, headers: &parts.headers, address };
    let begin = |user: &User| Audit::begin(api.inner.audit.as_ref(), &id, user, &route.attributes(), sent);
    let (caller, credentials, remarks) = match api.authenticate(&parts.extensions, &parts.headers) {
        Ok(known) => known,
        Err(Unauthenticated { error, audit: note }) => {
            let audit = begin(&User::default());
            if let Some((key, value)) = note {
                audit.annotate(key, value);
            }
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
                audit_id: id.clone(),
                warnings,
                content_type: headers::shown(&parts.headers, header::CONTENT_TYPE.as_str()).into_owned(),
                method: parts.method,
                uri: parts.uri,
                headers: parts.headers,
                upgrade,
                received: started,
                timeout,
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

/// What a request is about, where it leads, and the time that its client gives it.
fn read(api: &Api, uri: &Uri, method: &Method) -> Result<(Route, Option<Duration>), ApiError> {
    let segments = request_info::segments(uri.path())
        .ok_or_else(|| ApiError::bad_request("the path holds an escape that cannot be read"))?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let none = Uri::default();
    let mut options = RequestOptions::parse(if request_info::is_proxied(&segments) { &none } else { uri })?;
    let info = RequestInfo::parse(&segments, method, &options);
    let timeout = info.timeout(&options)?;
    options.watch |= info.verb == "watch";
    Ok((Route::new(&api.catalogs().current(), info, options), timeout))
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
    pub(in crate::apiserver) fn authorize_create(&self, target: &Target) -> Result<(), ApiError> {
        let attributes = target.attributes("create");
        let decided = self.api.authorizer().authorize(&self.user, &attributes);
        decided.map_err(|why| forbidden(&self.user, &attributes, &why))
    }
}
