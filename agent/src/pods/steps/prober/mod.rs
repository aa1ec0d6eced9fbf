//! Handlers of probes and hooks: runs a command in a container, or connects to one of its ports, always in bounded
//! time. Upstream's `pkg/probe`.

mod grpc;

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{Container, ExecAction, HTTPGetAction, Probe, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use rustls::SignatureScheme;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use url::{Position, Url};
use windlass_kit::{blocking::PROBE_NAMES, duration, serve::headers, unverified_tls};

pub(crate) use grpc::grpc;

use crate::{
    engine::{Engine, exec::ExecResult},
    go_text::go_text,
};

/// Bytes of a response or of a command's output that are read; upstream's.
const MAX_RESPONSE_BYTES: usize = 10 * 1024;
/// Redirects that are followed; upstream's.
const MAX_REDIRECTS: usize = 10;

/// The User-Agent of probes.
pub(crate) const PROBE_USER_AGENT: &str = "kube-probe/1.36";

/// The result of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Success,
    /// A success that an event is recorded for.
    Warning(String),
    Failure(String),
    /// The handler could not be run, which says nothing of the container.
    Unknown(String),
}

/// The container that a handler addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeTarget<'a> {
    pub(crate) container: &'a Container,
    /// The container's id in Docker.
    pub(crate) id: &'a str,
    pub(crate) address: Option<IpAddr>,
}

/// Runs the handler of a probe with a timeout, which counts as a failure.
pub(crate) async fn with_timeout(
    limit: Duration,
    late: impl FnOnce() -> String,
    handler: impl Future<Output = ProbeResult>,
) -> ProbeResult {
    tokio::time::timeout(limit, handler).await.unwrap_or_else(|_| ProbeResult::Failure(late()))
}

/// What Go's client says of a request that took too long.
const HTTP_TIMEOUT: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";

/// The failure of a probe whose timeout is over, in upstream's words.
pub(crate) fn late(target: ProbeTarget<'_>, probe: &Probe, limit: Duration) -> String {
    let at = |port: &IntOrString, host_of: Option<&str>| {
        let host = host(target, host_of).unwrap_or_default();
        port_number(target, port).map_or_else(|_| host.clone(), |port| join(&host, port))
    };
    if let Some(action) = &probe.exec {
        let words = action.command.as_deref().unwrap_or_default().join(" ");
        format!("command timed out: {words:?} timed out after {}", duration::format(limit))
    } else if let Some(action) = &probe.http_get {
        match first_url(target, action) {
            Ok(url) => format!("Get \"{}\": {HTTP_TIMEOUT}", shown(&url)),
            Err(why) => why,
        }
    } else if let Some(action) = &probe.tcp_socket {
        format!("dial tcp {}: i/o timeout", at(&action.port, action.host.as_deref()))
    } else {
        grpc::late(limit)
    }
}

/// Runs a command; a success when it exits with 0.
pub(crate) async fn exec(engine: &Engine, target: ProbeTarget<'_>, action: &ExecAction) -> ProbeResult {
    let command = action.command.clone().unwrap_or_default();
    if command.is_empty() {
        return ProbeResult::Unknown("the command is empty".to_owned());
    }
    exec_result(engine.exec(target.id, &command, MAX_RESPONSE_BYTES).await.map_err(|error| error.to_string()))
}

/// The result of an exec probe. A failure without output is described by its exit code.
fn exec_result(ran: Result<ExecResult, String>) -> ProbeResult {
    match ran {
        Ok(exit) if exit.code == 0 => ProbeResult::Success,
        Ok(exit) if exit.output.trim().is_empty() => ProbeResult::Failure(format!("command exited with {}", exit.code)),
        Ok(exit) => ProbeResult::Failure(exit.output),
        Err(why) => ProbeResult::Unknown(why),
    }
}

fn port_number(target: ProbeTarget<'_>, port: &IntOrString) -> Result<u16, String> {
    let bad = |port: &dyn std::fmt::Display| format!("port {port} is not between 1 and 65535");
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok().filter(|n| *n > 0).ok_or_else(|| bad(number)),
        IntOrString::String(name) => {
            let named = target.container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            let number = named.map(|p| p.container_port).or_else(|| name.parse().ok());
            let number =
                number.ok_or_else(|| format!("container {:?} has no port named {name:?}", target.container.name))?;
            u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| bad(&number))
        }
    }
}

/// The host to connect to: the action's, else the pod's address.
fn host(target: ProbeTarget<'_>, host: Option<&str>) -> Result<String, String> {
    match (host.filter(|h| !h.is_empty()), target.address) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(address)) => Ok(address.to_string()),
        (None, None) => Err("the pod has no address".to_owned()),
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let refused = |to: &dyn std::fmt::Display, e: &std::io::Error| format!("dial tcp {to}: connect: {}", go_text(e));
    match host.parse::<IpAddr>() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await.map_err(|e| refused(&join(host, port), &e)),
        Err(_) => {
            // Apart from the names of API servers, which must not wait for a pod's.
            let name = host.to_owned();
            let found = PROBE_NAMES.io(move || Ok((&*name, port).to_socket_addrs()?.collect::<Vec<_>>())).await;
            let found = found.map_err(|_| format!("dial tcp: lookup {host}: no such host"))?;
            let first = found.first().map_or_else(|| join(host, port), SocketAddr::to_string);
            TcpStream::connect(&found[..]).await.map_err(|e| refused(&first, &e))
        }
    }
}

/// Connects to a port; a success when the connection is accepted.
pub(crate) async fn tcp(target: ProbeTarget<'_>, action: &TCPSocketAction) -> ProbeResult {
    let checked = async {
        let host = host(target, action.host.as_deref()).map_err(ProbeResult::Unknown)?;
        let port = port_number(target, &action.port).map_err(ProbeResult::Unknown)?;
        connect(&host, port).await.map_err(ProbeResult::Failure)
    };
    checked.await.map_or_else(|result| result, |_| ProbeResult::Success)
}

/// The URL of an `httpGet` action, whose path may have a query and unescaped characters. As in upstream's, what follows two
/// slashes is a host, in whose place the pod is.
fn action_url(tls: bool, host: &str, port: u16, path: &str) -> Result<Url, String> {
    let scheme = if tls { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut url = Url::parse(&format!("{scheme}://{host}:{port}/")).map_err(|e| format!("{host:?}: {e}"))?;
    let path = path.split('#').next().unwrap_or(path);
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let path = match path.strip_prefix("//") {
        Some(rest) if !rest.starts_with('/') => rest.find('/').map_or("", |at| &rest[at..]),
        _ => path,
    };
    url.set_path(path);
    url.set_query(query);
    Ok(url)
}

/// Statuses that Go's client follows.
const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// The host to dial.
fn host_of(url: &Url) -> String {
    match url.host() {
        Some(url::Host::Ipv6(ip)) => ip.to_string(),
        Some(host) => host.to_string(),
        None => String::new(),
    }
}

/// The URL that an action asks first.
fn first_url(target: ProbeTarget<'_>, action: &HTTPGetAction) -> Result<Url, String> {
    let tls = action.scheme.as_deref() == Some("HTTPS");
    let host = host(target, action.host.as_deref())?;
    action_url(tls, &host, port_number(target, &action.port)?, action.path.as_deref().unwrap_or("/"))
}

/// A URL as upstream writes it, with its port in any case.
fn shown(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or(80);
    let rest = &url[Position::BeforePath..Position::AfterQuery];
    format!("{}://{}:{port}{rest}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HttpFailure {
    /// Nothing could be asked.
    Impossible(String),
    /// The connection or the protocol failed.
    Transport(String),
}

/// Requests a URL; success is a status from 200 to 399, with a warning for a redirect to nowhere or to another host.
pub(crate) async fn http_get(target: ProbeTarget<'_>, action: &HTTPGetAction, user_agent: &str) -> ProbeResult {
    match http_answer(target, action, user_agent).await {
        Ok(response) => result_of(&response),
        Err(HttpFailure::Impossible(why)) => ProbeResult::Unknown(why),
        Err(HttpFailure::Transport(why)) => ProbeResult::Failure(why),
    }
}

/// Requests a URL and follows where it leads on the same host. Another one is not asked: what led there is the answer.
pub(crate) async fn http_answer(
    target: ProbeTarget<'_>,
    action: &HTTPGetAction,
    user_agent: &str,
) -> Result<Response<Bytes>, HttpFailure> {
    let mut url = first_url(target, action).map_err(HttpFailure::Impossible)?;
    let mut keeps_host = true;
    for _ in 0..=MAX_REDIRECTS {
        let response = get(&url, action, user_agent, keeps_host).await.map_err(HttpFailure::Transport)?;
        let status = response.status();
        let location = headers::shown(response.headers(), header::LOCATION.as_str()).into_owned();
        if !location.is_empty() && REDIRECT_STATUSES.contains(&status.as_u16()) {
            let next = url
                .join(&location)
                .map_err(|e| HttpFailure::Transport(format!("failed to parse Location header {location:?}: {e}")))?;
            if host_of(&next) != host_of(&url) {
                return Ok(response);
            }
            if !matches!(next.scheme(), "http" | "https") {
                let scheme = next.scheme();
                let why = format!("Get \"{next}\": unsupported protocol scheme \"{scheme}\"");
                return Err(HttpFailure::Transport(why));
            }
            // A place that names its host is asked for by that, whatever the action's headers say.
            keeps_host = Url::parse(&location).is_err();
            url = next;
            continue;
        }
        return Ok(response);
    }
    Err(HttpFailure::Transport(format!("Get \"{}\": stopped after {MAX_REDIRECTS} redirects", shown(&url))))
}

fn result_of(response: &Response<Bytes>) -> ProbeResult {
    match response.status() {
        status if status.is_success() => ProbeResult::Success,
        status if status.is_redirection() => {
            let body = String::from_utf8_lossy(response.body());
            ProbeResult::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        status => ProbeResult::Failure(format!("HTTP probe failed with statuscode: {}", status.as_u16())),
    }
}

/// Puts the headers of an action among those of a request, as upstream does: the first of a name replaces a default. `Host` and
/// `User-Agent` have one value; an empty one leaves the host as it was, and an empty `User-Agent` or `Accept` is none. Those of the
/// transport are its own.
fn set_headers(all: &mut HeaderMap, action: &HTTPGetAction, keeps_host: bool) -> Result<(), String> {
    let mut seen: Vec<HeaderName> = Vec::new();
    for given in action.http_headers.iter().flatten() {
        let name: HeaderName = given.name.parse().map_err(|e| format!("{:?}: {e}", given.name))?;
        let value = HeaderValue::from_str(&given.value).map_err(|e| format!("{name}: {e}"))?;
        let is_first = !seen.contains(&name);
        if is_first {
            seen.push(name.clone());
        }
        match (name.as_str(), is_first, value.is_empty()) {
            ("content-length" | "transfer-encoding" | "trailer", ..) | ("user-agent", false, _) => {}
            ("host", is_first, is_empty) if !is_first || is_empty || !keeps_host => {}
            ("user-agent" | "accept", true, true) => drop(all.remove(name)),
            ("accept", false, _) if !all.contains_key(&name) => {}
            (_, true, _) => drop(all.insert(name, value)),
            (_, false, _) => drop(all.append(name, value)),
        }
    }
    Ok(())
}

async fn get(url: &Url, action: &HTTPGetAction, user_agent: &str, keeps_host: bool) -> Result<Response<Bytes>, String> {
    let bad = |e: &dyn std::fmt::Display| format!("Get \"{}\": {e}", shown(url));
    let mut request = Request::get(&url[Position::BeforePath..Position::AfterQuery])
        .header(header::USER_AGENT, user_agent)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .header(header::HOST, &url[Position::BeforeHost..Position::AfterPort])
        .body(Full::<Bytes>::default())
        .map_err(|e| bad(&e))?;
    set_headers(request.headers_mut(), action, keeps_host).map_err(|e| bad(&e))?;
    let host = host_of(url);
    let stream = connect(&host, url.port_or_known_default().unwrap_or(80)).await.map_err(|e| bad(&e))?;
    let response = if url.scheme() == "https" {
        let name = ServerName::try_from(host).map_err(|e| bad(&e))?;
        let connector =
            tokio_rustls::TlsConnector::from(Arc::new(unverified_tls::client_config(SIGNATURE_SCHEMES.to_vec())));
        let stream = connector.connect(name, stream).await.map_err(|e| match e.to_string() {
            why if why.contains("InvalidContentType") => bad(&PLAIN_ANSWER),
            _ => bad(&go_text(&e)),
        })?;
        send(TokioIo::new(stream), request).await
    } else {
        send(TokioIo::new(stream), request).await
    };
    response.map_err(|e| bad(&e))
}

/// Sends one request on a new connection and reads at most [`MAX_RESPONSE_BYTES`] of the response.
async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(|e| http_text(&e))?;
    let checked = async {
        let (head, body) = sender.send_request(request).await.map_err(|e| http_text(&e))?.into_parts();
        // A longer body is no failure; the rest of it is not read.
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        Ok(Response::from_parts(head, body))
    };
    tokio::pin!(checked);
    tokio::pin!(connection);
    tokio::select! {
        response = &mut checked => response,
        ended = &mut connection => match ended {
            // The response is buffered already.
            Ok(()) => checked.await,
            Err(e) => Err(http_text(&e)),
        },
    }
}

/// What Go says of a server that does not speak TLS.
pub(crate) const PLAIN_ANSWER: &str = "http: server gave HTTP response to HTTPS client";

/// A failure of HTTP itself, in Go's words where they are known.
fn http_text(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause {
        _ if error.is_incomplete_message() => "EOF".to_owned(),
        Some(cause) => go_text(cause),
        None => error.to_string(),
    }
}

/// The schemes that Go offers: a server may use no others.
const SIGNATURE_SCHEMES: [SignatureScheme; 12] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];

#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;
