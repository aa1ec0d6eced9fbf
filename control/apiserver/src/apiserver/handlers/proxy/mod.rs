//! `proxy` subresources: any request, passed on to what serves an object, and its response; upgraded connections byte for
//! byte. Upstream's `UpgradeAwareHandler`.
//!
//! `head` (path and headers), `rewrite` (URLs) and `html` (links in pages) are pure; `body` rewrites a page as it passes,
//! `backend` opens connections, also for the client of nodes.

pub(crate) mod backend;
mod body;
pub(crate) mod head;
mod html;
mod rewrite;

use std::{borrow::Cow, fmt, net::SocketAddr, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Method, Request, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use hyper::body::Incoming;
use serde_json::{Value, json};
use windlass_kit::serve::headers;

use super::kubelet_client::KubeletClient;
use crate::apiserver::{
    pipeline::admission::{Operation, WriteOptions},
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::RequestInfo,
        target::Target,
    },
};
use backend::Stream;
pub(crate) use backend::{is_proxyable, node_address, node_ip};
use body::RewrittenPage;
use rewrite::Rewrite;

/// Time limit for the header of a response. Upstream has none; some backends answer only when there is news.
const RESPONSE_HEADER_TIMEOUT: Duration = Duration::from_secs(600);

/// What serves an object.
#[derive(Debug)]
pub enum Backend {
    /// The API of a node, by the server's own credentials.
    Node(KubeletClient, Box<Value>),
    /// A port of an address. The certificate of a backend with TLS is not verified, as upstream.
    Address {
        /// Whether it speaks TLS.
        https: bool,
        /// Where it is.
        address: SocketAddr,
    },
    /// Nothing that can be reached, and why.
    Unreachable(String),
}

impl Backend {
    /// What URLs of the backend itself name.
    fn host(&self) -> String {
        match self {
            Self::Address { address, .. } => address.to_string(),
            Self::Node(_, node) => backend::node_address(node).map(|address| address.to_string()).unwrap_or_default(),
            Self::Unreachable(_) => String::new(),
        }
    }

    async fn open(&self) -> Result<Stream, String> {
        match self {
            Self::Node(kubelet, node) => kubelet.open(node).await,
            Self::Address { https: true, address } => backend::connect_tls(*address).await,
            Self::Address { https: false, address } => backend::connect(*address).await,
            Self::Unreachable(why) => Err(why.clone()),
        }
    }
}

/// Finds the backend of an object's `proxy` subresource.
pub trait Locate: Send + Sync + fmt::Debug {
    /// The backend that the name in a path means, such as `https:name:port`.
    ///
    /// # Errors
    /// When the object has no such backend.
    fn locate(&self, request: &ApiRequest, target: &Target) -> Result<Backend, ApiError>;
}

/// The parts of a name such as `https:name:port`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SchemeNamePort<'a> {
    pub(crate) https: bool,
    pub(crate) name: &'a str,
    /// A number or a name; empty without one.
    pub(crate) port: &'a str,
}

impl<'a> SchemeNamePort<'a> {
    /// Splits a name as upstream's `SplitSchemeNamePort`.
    pub(crate) fn parse(id: &'a str) -> Option<Self> {
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let is_valid = !name.is_empty() && matches!(scheme, "" | "http" | "https");
        is_valid.then_some(Self { https: scheme == "https", name, port })
    }

    /// What the name in a path asks for; `what` is upstream's word for the object.
    ///
    /// # Errors
    /// When it cannot be split.
    pub(crate) fn of(target: &'a Target, what: &str) -> Result<Self, ApiError> {
        let id = target.name();
        Self::parse(id).ok_or_else(|| ApiError::bad_request(format!("invalid {what} request {id:?}")))
    }

    /// The object that is meant.
    ///
    /// # Errors
    /// When it does not exist.
    pub(crate) fn read(&self, request: &ApiRequest, target: &Target) -> Result<Value, ApiError> {
        request.read(&Target { name: Some(self.name.to_owned()), ..target.whole() })
    }
}

impl ApiRequest {
    /// Passes the request on and answers with the response.
    pub(in crate::apiserver) async fn proxy(
        &self,
        target: &Target,
        info: &RequestInfo,
        locate: &dyn Locate,
        body: Body,
    ) -> ApiResult {
        self.begin_streaming();
        let kind = target.served().and_then(|served| served.kind.as_ref());
        let kind = kind.map(|kind| (kind.kind.as_ref(), kind.api_version()));
        let path = format!("/{}", info.rest.join("/"));
        let options = kind.map(|(kind, version)| json!({"kind": kind, "apiVersion": version, "path": path}));
        self.admit(target, Operation::Connect, WriteOptions::None, options.unwrap_or_default(), None).await?;
        let backend = locate.locate(self, target)?;
        let path = head::backend_path(&info.rest, self.uri.path());
        if let Some(client) = self.requested_upgrade()? {
            let mut request = self.backend_request(head::uri(&path, self.uri.query())?, body);
            *request.headers_mut() = head::upgrade_headers(&self.headers, self.client);
            let mut answer = match exchange(&backend, request).await {
                Ok(answer) => answer,
                Err(why) => return Err(ApiError::unknown(format!("error dialing backend: {why}"))),
            };
            let status = answer.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                backend::join(client, hyper::upgrade::on(&mut answer), self.closing());
                return Ok(answer.map(|_| Body::empty()));
            }
            if status.as_u16() < 400 {
                let why = format!("invalid upgrade response: status code {}", status.as_u16());
                return Err(ApiError::unknown(why));
            }
            head::remove_hop_by_hop(answer.headers_mut());
            return Ok(answer.map(Body::new));
        }
        if path.is_empty() && matches!(self.method, Method::GET | Method::HEAD) {
            return self.redirect_to_root();
        }
        let rewrite = Rewrite {
            prefix: head::path_prefix(self.uri.path(), &path),
            backend_host: backend.host(),
            request_host: self.host().into_owned(),
        };
        let mut request = self.backend_request(head::uri(&path, self.uri.query())?, body);
        *request.headers_mut() = head::request_headers(&self.headers, self.client);
        let forwarded = rewrite.forwarded_uri(&path);
        if let Ok(forwarded) = HeaderValue::from_str(&forwarded) {
            request.headers_mut().insert(head::FORWARDED_URI, forwarded);
        }
        if let Ok(host) = HeaderValue::from_bytes(self.host().as_bytes()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let answer = exchange(&backend, request).await;
        let answer =
            answer.map_err(|why| ApiError::service_unavailable(format!("error trying to reach service: {why}")))?;
        rewritten(answer, rewrite)
    }

    fn backend_request(&self, uri: axum::http::Uri, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        (*request.method_mut(), *request.uri_mut()) = (self.method.clone(), uri);
        request
    }

    /// The host that the client has asked for.
    fn host(&self) -> Cow<'_, str> {
        if self.headers.contains_key(header::HOST) {
            return headers::shown(&self.headers, "host");
        }
        self.uri.authority().map(|authority| authority.as_str().into()).unwrap_or_default()
    }

    /// Relative links of a page work only below a path that ends with a slash.
    fn redirect_to_root(&self) -> ApiResult {
        let query = self.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let location = format!("{}/{query}", self.uri.path());
        Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response())
    }
}

/// Sends a request over a connection of its own and waits for the header of the response.
async fn exchange(backend: &Backend, request: Request<Body>) -> Result<Response<Incoming>, String> {
    let stream = backend.open().await?;
    let answer = tokio::time::timeout(RESPONSE_HEADER_TIMEOUT, backend::exchange(stream, request)).await;
    answer.map_err(|_| "timeout awaiting response headers".to_owned())?.map_err(|error| backend::reason(&error))
}

/// A response with the links of the API's own paths.
fn rewritten(answer: Response<Incoming>, rewrite: Rewrite) -> ApiResult {
    let (mut parts, body) = answer.into_parts();
    head::remove_hop_by_hop(&mut parts.headers);
    head::remove_cors(&mut parts.headers);
    if parts.headers.get(header::LOCATION).is_some_and(|location| !location.is_empty()) {
        let location = headers::text(&parts.headers, "location").map_err(|error| error.to_string());
        let location = location.and_then(|text| rewrite.url(text.unwrap_or_default()));
        let location = location.and_then(|text| HeaderValue::from_str(&text).map_err(|error| error.to_string()));
        let unreadable = |why| ApiError::internal(format!("error trying to parse Location header: {why}"));
        parts.headers.insert(header::LOCATION, location.map_err(unreadable)?);
        return Ok(Response::from_parts(parts, Body::new(body)));
    }
    if !head::is_page(&parts.headers) {
        return Ok(Response::from_parts(parts, Body::new(body)));
    }
    match RewrittenPage::new(body, &parts.headers, rewrite) {
        Ok(page) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            Ok(Response::from_parts(parts, Body::new(page)))
        }
        Err(body) => Ok(Response::from_parts(parts, Body::new(body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_scheme_and_a_port() {
        for (id, found) in [
            ("a", Some((false, "a", ""))),
            ("a:80", Some((false, "a", "80"))),
            ("a:", Some((false, "a", ""))),
            ("http:a:web", Some((false, "a", "web"))),
            ("https:a:", Some((true, "a", ""))),
            (":a:80", Some((false, "a", "80"))),
            ("ftp:a:80", None),
            ("a:b:c:d", None),
            (":80", None),
            ("", None),
        ] {
            let parsed = SchemeNamePort::parse(id).map(|parsed| (parsed.https, parsed.name, parsed.port));
            assert_eq!(parsed, found, "{id:?}");
        }
    }
}
