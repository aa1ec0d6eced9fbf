//! Requests for what an extension API server serves: passed on as they arrive, with headers that say who they are from, and
//! their responses; upgraded connections byte for byte. Who may ask was decided before.
//!
//! Upstream: `k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go`.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use tokio::time::Instant;
use windlass_kit::{percent, serve::LongRunning};

use super::{
    discovery::hashed,
    proxy::{
        backend,
        head::{self, auth_proxy_headers, request_headers, upgrade_headers},
    },
};
use crate::apiserver::{
    request::{
        api_request::ApiRequest,
        audit::AUDIT_ID,
        error::{ApiError, ApiResult},
        request_info::{RequestInfo, RequestOptions},
        target::Route,
    },
    types::{Catalog, Extension, ExtensionError, OpenApiV2},
};

/// Time limit of the list of a group version's resources (`aggregatedDiscoveryTimeout`).
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A response as Go's `http.Error` writes it.
fn http_error(code: StatusCode, text: &str) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, format!("{text}\n")).into_response()
}

fn unavailable(text: &str) -> Response {
    http_error(StatusCode::SERVICE_UNAVAILABLE, text)
}

fn failed(error: &ExtensionError) -> Response {
    match error {
        ExtensionError::Unresolved(why) => {
            tracing::debug!(why, "failed to resolve the service of an APIService");
            unavailable("service unavailable")
        }
        ExtensionError::Misconfigured(why) => http_error(StatusCode::INTERNAL_SERVER_ERROR, why),
        ExtensionError::Unreachable(why) => unavailable(&format!("error trying to reach service: {why}")),
    }
}

/// Whether a request asks for the list of a group version's resources.
fn is_discovery(info: &RequestInfo) -> bool {
    !info.is_resource && info.path.starts_with("/apis/")
}

/// What the server is asked for: the path and the options that were authorized, so that both read the same in them.
fn uri(info: &RequestInfo, options: &RequestOptions, asked: &Uri) -> Result<Uri, ApiError> {
    let end = if asked.path().ends_with('/') && !info.path.ends_with('/') { "/" } else { "" };
    // Those of a `proxy` subresource are not for this server.
    let query = if options.all.is_empty() { asked.query().map(str::to_owned) } else { Some(encoded(options)) };
    head::uri(&format!("{}{end}", info.path), query.as_deref().filter(|query| !query.is_empty()))
}

fn encoded(options: &RequestOptions) -> String {
    let mut all: Vec<&(String, String)> = options.all.iter().collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    // As Go writes a query.
    let escaped = |text: &str| percent::encoded(text, " ").replace(' ', "+");
    let pair = |(key, value): &&(String, String)| format!("{}={}", escaped(key), escaped(value));
    all.iter().map(pair).collect::<Vec<_>>().join("&")
}

impl ApiRequest {
    /// Passes the request on to the extension API server that serves what it is about.
    pub(in crate::apiserver) async fn aggregate(&self, extension: &Extension, route: &Route, body: Body) -> ApiResult {
        let info = &route.info;
        // Documents that its list of documents does not have are not asked for.
        if let Some(path) = info.path.strip_prefix("/openapi/v3/") {
            if !extension.openapi_v3.contains_key(path) {
                return Ok(StatusCode::NOT_FOUND.into_response());
            }
            if let Some(converted) = &extension.converted {
                let place = (path, converted.hash.as_str());
                return hashed(place, &self.headers, self.accept, &route.options, || converted.text.clone());
            }
        }
        if !extension.is_available {
            return Ok(unavailable("service unavailable"));
        }
        self.begin_streaming();
        let uri = uri(info, &route.options, &self.uri)?;
        if let Some(client) = self.requested_upgrade()? {
            return self.aggregate_upgrade(extension, uri, client, body).await;
        }
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = request_headers(&self.headers, self.client);
        for (name, value) in forwarded(&uri) {
            request.headers_mut().insert(name, value);
        }
        *request.uri_mut() = uri;
        if let Err(why) = self.identify(request.headers_mut()) {
            return Ok(failed(&ExtensionError::Unreachable(why)));
        }
        if info.is_long_running() {
            let answer = extension.server.send(request, true).await;
            let mut answer = answer.map_or_else(|error| failed(&error), |answer| passed_on(answer, Body::new));
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        let _permit = self.api.inner.limits.acquire_extension()?;
        let deadline = self.deadline();
        let until = if is_discovery(info) { deadline.min(Instant::now() + DISCOVERY_TIMEOUT) } else { deadline };
        let sent = tokio::time::timeout_at(until, extension.server.send(request, false)).await;
        match sent {
            Ok(Ok(answer)) => Ok(passed_on(answer, |body| within(body, deadline))),
            Ok(Err(error)) => Ok(failed(&error)),
            Err(_) if until < deadline => {
                Ok(failed(&ExtensionError::Unreachable("context deadline exceeded".to_owned())))
            }
            Err(_) => Err(ApiError::timed_out()),
        }
    }

    async fn aggregate_upgrade(
        &self,
        extension: &Extension,
        uri: Uri,
        client: hyper::upgrade::OnUpgrade,
        body: Body,
    ) -> ApiResult {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = upgrade_headers(&self.headers, self.client);
        if let Err(why) = self.identify(request.headers_mut()) {
            return Ok(unavailable(&why));
        }
        let mut answer = match extension.server.send(request, true).await {
            Ok(answer) => answer,
            Err(ExtensionError::Unreachable(why)) => return Ok(unavailable(&format!("error dialing backend: {why}"))),
            Err(error) => return Ok(failed(&error)),
        };
        let status = answer.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            backend::join(client, hyper::upgrade::on(&mut answer), self.closing());
            let mut answer = answer.map(|_| Body::empty());
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        if status.as_u16() < 400 {
            return Ok(unavailable(&format!("invalid upgrade response: status code {}", status.as_u16())));
        }
        head::remove_hop_by_hop(answer.headers_mut());
        Ok(answer.map(Body::new))
    }

    /// Says who the request is from, and by which id it is known here.
    fn identify(&self, headers: &mut HeaderMap) -> Result<(), String> {
        auth_proxy_headers(headers, &self.user)?;
        let id = HeaderValue::from_bytes(self.audit_id.as_bytes()).map_err(|error| error.to_string())?;
        headers.insert(AUDIT_ID, id);
        Ok(())
    }

    /// The OpenAPI documents of version 2 of all extension API servers.
    pub(in crate::apiserver) async fn extension_documents(&self, catalog: &Catalog) -> Vec<Arc<OpenApiV2>> {
        let all = catalog.extensions.iter().map(|extension| extension.server.openapi_v2());
        futures::future::join_all(all).await.into_iter().flatten().collect()
    }
}

/// What the aggregator of upstream says of where a request came from.
fn forwarded(uri: &Uri) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let path = HeaderValue::from_str(uri.path()).ok().map(|path| (head::FORWARDED_URI, path));
    path.into_iter().chain([(HeaderName::from_static("x-forwarded-proto"), HeaderValue::from_static("https"))])
}

/// A response for the client. One that leads elsewhere is refused: the client would send its credentials there.
fn passed_on(answer: Response<Incoming>, body: impl FnOnce(Incoming) -> Body) -> Response {
    let (mut parts, incoming) = answer.into_parts();
    let leads_on = parts.headers.get(header::LOCATION).is_some_and(|location| !location.is_empty());
    if parts.status.is_redirection() && leads_on {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return (StatusCode::BAD_GATEWAY, Body::from(why)).into_response();
    }
    head::remove_hop_by_hop(&mut parts.headers);
    head::remove_cors(&mut parts.headers);
    Response::from_parts(parts, body(incoming))
}

/// A body that fails when it has not ended in time.
fn within(body: Incoming, deadline: Instant) -> Body {
    let frames = futures::stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout_at(deadline, body.frame()).await {
            Ok(frame) => frame.map(|frame| (frame.map_err(axum::Error::new), Some(body))),
            Err(elapsed) => Some((Err(axum::Error::new(elapsed)), None)),
        }
    });
    Body::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::apiserver::request::request_info::segments;

    fn read(path: &str, method: &Method) -> (RequestInfo, RequestOptions, Uri) {
        let asked: Uri = path.parse().unwrap();
        let options = RequestOptions::parse(&asked).unwrap();
        let all = segments(asked.path()).unwrap();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        (RequestInfo::parse(&all, method, &options), options, asked)
    }

    #[test]
    fn what_was_authorized_is_asked_for() {
        for (asked, wanted) in [
            ("/apis/g/v", "/apis/g/v"),
            ("/apis/g/v/", "/apis/g/v/"),
            ("/apis/g/v/namespaces/n/x?limit=5&a=b%20c", "/apis/g/v/namespaces/n/x?a=b+c&limit=5"),
            // Go decodes it for both.
            ("/apis/g/v/x/a%2Fb", "/apis/g/v/x/a/b"),
            ("/apis/g/v/x/a%20b?watch=%zz&watch=1", "/apis/g/v/x/a%20b?watch=%25zz&watch=1"),
            ("/apis/g/v/x/%C3%BC?", "/apis/g/v/x/%C3%BC"),
        ] {
            let (info, options, uri_asked) = read(asked, &Method::GET);
            assert_eq!(uri(&info, &options, &uri_asked).unwrap().to_string(), wanted, "{asked}");
        }
    }

    #[test]
    fn what_lasts_has_no_time_limit() {
        for (path, method, long, discovery) in [
            ("/apis/g/v/x?watch=true", Method::GET, true, false),
            ("/apis/g/v/watch/x", Method::GET, true, false),
            ("/apis/g/v/x", Method::GET, false, false),
            ("/apis/g/v/namespaces/n/x/y/exec", Method::POST, true, false),
            ("/apis/g/v/namespaces/n/x/y/status", Method::PUT, false, false),
            ("/apis/g/v", Method::GET, false, true),
            ("/openapi/v3/apis/g/v", Method::GET, false, false),
        ] {
            let (info, ..) = read(path, &method);
            assert_eq!((info.is_long_running(), is_discovery(&info)), (long, discovery), "{path}");
        }
    }
}
