//! Asks a container something, for probes and hooks: runs a command in it, or talks to one of its ports. Always in
//! bounded time.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::{
    api::core::v1::{Container, ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use url::{Position, Url};

use crate::engine::Engine;

/// What is kept of an answer; upstream's.
const MOST: usize = 10 * 1024;
/// Redirections that are followed; upstream's.
const REDIRECTS: usize = 10;

/// How we name ourselves to those whom a probe asks.
pub(crate) const PROBE: &str = "kube-probe/1.36";

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    /// Good, with something that somebody should know.
    Doubtful(String),
    Bad(String),
    /// It could not be asked, which says nothing of the container.
    Unknown(String),
}

/// Whom to ask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) container: &'a Container,
    /// The container's id in Docker.
    pub(crate) id: &'a str,
    pub(crate) address: Option<IpAddr>,
}

/// Bounds a question's time; what did not come in time is bad.
pub(crate) async fn within(limit: Duration, question: impl Future<Output = Answer>) -> Answer {
    tokio::time::timeout(limit, question).await.unwrap_or_else(|_| Answer::Bad(format!("no answer within {:?}", limit)))
}

/// Runs a command; good when it exits with 0.
pub(crate) async fn exec(engine: &Engine, target: Target<'_>, action: &ExecAction) -> Answer {
    let command = action.command.clone().unwrap_or_default();
    if command.is_empty() {
        return Answer::Unknown("the command is empty".to_owned());
    }
    match engine.exec(target.id, &command, MOST).await {
        Ok(ended) if ended.code == 0 => Answer::Good,
        Ok(ended) if ended.output.trim().is_empty() => Answer::Bad(format!("command exited with {}", ended.code)),
        Ok(ended) => Answer::Bad(ended.output),
        Err(error) => Answer::Unknown(error.to_string()),
    }
}

fn number(target: Target<'_>, port: &IntOrString) -> Result<u16, String> {
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

/// The host that is asked: the action's, else the pod's address.
fn host(target: Target<'_>, host: Option<&str>) -> Result<String, String> {
    match (host.filter(|h| !h.is_empty()), target.address) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(address)) => Ok(address.to_string()),
        (None, None) => Err("the pod has no address".to_owned()),
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let failed = |e: std::io::Error| format!("dial tcp {host}:{port}: {e}");
    match host.parse::<IpAddr>() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await.map_err(failed),
        Err(_) => TcpStream::connect((host, port)).await.map_err(failed),
    }
}

/// Connects; good when somebody accepts.
pub(crate) async fn tcp(target: Target<'_>, action: &TCPSocketAction) -> Answer {
    let asked = async {
        let host = host(target, action.host.as_deref()).map_err(Answer::Unknown)?;
        let port = number(target, &action.port).map_err(Answer::Unknown)?;
        connect(&host, port).await.map_err(Answer::Bad)
    };
    asked.await.map_or_else(|answer| answer, |_| Answer::Good)
}

/// The page that a probe or hook means: a path, perhaps with a query, written as people write it.
fn page(tls: bool, host: &str, port: u16, path: &str) -> Result<Url, String> {
    let scheme = if tls { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut url = Url::parse(&format!("{scheme}://{host}:{port}/")).map_err(|e| format!("{host:?}: {e}"))?;
    let path = path.split('#').next().unwrap_or(path);
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    url.set_path(path);
    url.set_query(query);
    Ok(url)
}

/// Statuses that Go's client follows.
const REDIRECTING: [u16; 5] = [301, 302, 303, 307, 308];

/// The host as it is dialled.
fn host_of(url: &Url) -> String {
    match url.host() {
        Some(url::Host::Ipv6(ip)) => ip.to_string(),
        Some(host) => host.to_string(),
        None => String::new(),
    }
}

/// Asks for a page; good from 200 to 399. `agent` is how we name ourselves.
pub(crate) async fn http_get(target: Target<'_>, action: &HTTPGetAction, agent: &str) -> Answer {
    let asked = async {
        let tls = action.scheme.as_deref() == Some("HTTPS");
        let host = host(target, action.host.as_deref()).map_err(Answer::Unknown)?;
        let port = number(target, &action.port).map_err(Answer::Unknown)?;
        let mut url = page(tls, &host, port, action.path.as_deref().unwrap_or("/")).map_err(Answer::Unknown)?;
        for _ in 0..=REDIRECTS {
            let response = get(&url, action, agent).await.map_err(Answer::Bad)?;
            let status = response.status();
            let location = response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok());
            if let Some(location) = location.filter(|l| !l.is_empty() && REDIRECTING.contains(&status.as_u16())) {
                let next = url
                    .join(location)
                    .map_err(|e| Answer::Bad(format!("failed to parse Location header {location:?}: {e}")))?;
                if host_of(&next) != host_of(&url) {
                    return Ok(Answer::Doubtful(format!("Probe terminated redirects, Response body: {location}")));
                }
                if !matches!(next.scheme(), "http" | "https") {
                    let scheme = next.scheme();
                    return Err(Answer::Bad(format!("Get \"{next}\": unsupported protocol scheme \"{scheme}\"")));
                }
                url = next;
                continue;
            }
            return Ok(judge(status));
        }
        Err(Answer::Bad(format!("stopped after {REDIRECTS} redirects")))
    };
    asked.await.unwrap_or_else(|answer| answer)
}

fn judge(status: StatusCode) -> Answer {
    if (200..400).contains(&status.as_u16()) {
        Answer::Good
    } else {
        Answer::Bad(format!("HTTP probe failed with statuscode: {}", status.as_u16()))
    }
}

async fn get(url: &Url, action: &HTTPGetAction, agent: &str) -> Result<Response<Bytes>, String> {
    let bad = |e: &dyn std::fmt::Display| format!("Get \"{url}\": {e}");
    let mut request = Request::get(&url[Position::BeforePath..Position::AfterQuery])
        .header(header::USER_AGENT, agent)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .header(header::HOST, &url[Position::BeforeHost..Position::AfterPort])
        .body(Full::<Bytes>::default())
        .map_err(|e| bad(&e))?;
    let mut seen: Vec<HeaderName> = Vec::new();
    for given in action.http_headers.iter().flatten() {
        let name: HeaderName = given.name.parse().map_err(|e| bad(&e))?;
        let value = HeaderValue::from_str(&given.value).map_err(|e| bad(&e))?;
        // The first of a name replaces ours; an empty one takes it away.
        if !seen.contains(&name) {
            request.headers_mut().remove(&name);
            seen.push(name.clone());
        }
        if !given.value.is_empty() {
            request.headers_mut().append(name, value);
        }
    }
    let host = host_of(url);
    let stream = connect(&host, url.port_or_known_default().unwrap_or(80)).await?;
    let response = if url.scheme() == "https" {
        let name = ServerName::try_from(host).map_err(|e| bad(&e))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(trusting()));
        let stream = connector.connect(name, stream).await.map_err(|e| bad(&e))?;
        talk(TokioIo::new(stream), request).await
    } else {
        talk(TokioIo::new(stream), request).await
    };
    response.map_err(|e| bad(&e))
}

/// Sends one request over a connection of its own and reads no more of the answer than is kept.
async fn talk<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(|e| e.to_string())?;
    let asked = async {
        let (head, body) = sender.send_request(request).await.map_err(|e| e.to_string())?.into_parts();
        // A longer body is no fault; the rest of it is not read.
        let body = Limited::new(body, MOST).collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        Ok(Response::from_parts(head, body))
    };
    tokio::pin!(asked);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut asked => answer,
        ended = &mut connection => match ended {
            // The last bytes are there already.
            Ok(()) => asked.await,
            Err(e) => Err(e.to_string()),
        },
    }
}

/// Whatever certificate a pod shows is taken: a probe asks whether it answers, as upstream's does.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    // The signature belongs to a key that nobody vouches for: checking it would prove nothing, and refuse certificates
    // that are older, smaller or of other curves than ring takes.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        // As Go offers them: what is not offered a server may not use.
        vec![
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
        ]
    }
}

fn trusting() -> ClientConfig {
    let verifier = Arc::new(AnyCertificate);
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring serves the default versions of TLS")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Asks the health service of gRPC; good when it serves.
pub(crate) async fn grpc(target: Target<'_>, action: &GRPCAction) -> Answer {
    let (host, port) = match (host(target, None), number(target, &IntOrString::Int(action.port))) {
        (Ok(host), Ok(port)) => (host, port),
        (Err(why), _) | (_, Err(why)) => return Answer::Unknown(why),
    };
    let asked = async {
        let stream = connect(&host, port).await?;
        let failed = |e: hyper::Error| format!("error: health rpc probe failed: {e}");
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(failed)?;
        let request = Request::post(format!("http://{host}:{port}/grpc.health.v1.Health/Check"))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, "kube-probe/1.36")
            .body(Full::new(check_request(action.service.as_deref().unwrap_or(""))))
            .map_err(|e| e.to_string())?;
        let driving = tokio::spawn(connection);
        let asked = async {
            let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
            let body = Limited::new(body, MOST).collect().await.map_err(|e| e.to_string())?;
            let of = |headers: &http::HeaderMap, name: &str| {
                headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
            };
            let trailer = |name: &str| body.trailers().and_then(|t| of(t, name)).or_else(|| of(&head.headers, name));
            let (status, message) = (trailer("grpc-status"), trailer("grpc-message").unwrap_or_default());
            Ok::<_, String>((status, message, body.to_bytes()))
        };
        let answer = asked.await;
        driving.abort();
        let (status, message, body) = answer?;
        match status.as_deref() {
            Some("0") => match serving(&body) {
                Some(1) => Ok(Answer::Good),
                other => {
                    let word = match other {
                        Some(2) => "NOT_SERVING",
                        Some(3) => "SERVICE_UNKNOWN",
                        _ => "UNKNOWN",
                    };
                    Ok(Answer::Bad(format!("service unhealthy (responded with \"{word}\")")))
                }
            },
            Some("12") => {
                Err("error: this server does not implement the grpc health protocol (grpc.health.v1.Health)".to_owned())
            }
            Some(code) => Err(format!("error: health rpc probe failed: status {code}: {message}")),
            None => Err("error: health rpc probe failed: the answer has no status".to_owned()),
        }
    };
    asked.await.unwrap_or_else(Answer::Bad)
}

/// `HealthCheckRequest` with field 1, the service's name, in gRPC's frame.
fn check_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut left = service.len();
        while left >= 0x80 {
            message.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        message.push(left as u8);
        message.extend(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// Field 1 of `HealthCheckResponse`: 1 means serving; absent is 0.
fn serving(frame: &[u8]) -> Option<u8> {
    match frame.get(5..)? {
        [] => Some(0),
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
