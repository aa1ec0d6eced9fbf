//! Connections to backends: to addresses of pods and nodes, and what is sent over one.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{body::Body, http::Request, response::Response};
use hyper::{body::Incoming, client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use windlass_kit::unverified_tls;

/// Time limits, as Go's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits of the head of a response.
const MAX_HEAD_BYTES: usize = 256 << 10;
const MAX_HEADERS: usize = 200;
/// Buffer size of an upgraded connection, for each direction.
const COPY_BUFFER_BYTES: usize = 64 << 10;

/// What a connection is.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

pub(crate) type Stream = Box<dyn Duplex>;

/// Whether requests may be passed on to an address: none of this machine alone, of a link or of many (Go's
/// `IsGlobalUnicast`, which upstream asks for). Pure.
pub(crate) fn is_proxyable(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4 == Ipv4Addr::BROADCAST,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_link_local)
}

/// The port of the API of a node that does not say its own (upstream: `ports.KubeletPort`).
const KUBELET_PORT: u16 = 10250;

/// Where a node serves its API.
pub(crate) fn node_address(node: &Value) -> Option<SocketAddr> {
    let told = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_i64().filter(|port| *port > 0);
    let port = told.map_or(Some(KUBELET_PORT), |port| u16::try_from(port).ok())?;
    Some(SocketAddr::new(node_ip(node)?, port))
}

/// The address of a node inside the cluster.
pub(crate) fn node_ip(node: &Value) -> Option<IpAddr> {
    let addresses = node["status"]["addresses"].as_array()?;
    addresses.iter().find(|address| address["type"] == "InternalIP")?["address"].as_str()?.parse().ok()
}

/// Connects to an address; fails in Go's words.
pub(crate) async fn connect(address: SocketAddr) -> Result<Stream, String> {
    Ok(Box::new(dial(address).await?))
}

/// Connects with TLS, without verification: the address is the only identity.
pub(super) async fn connect_tls(address: SocketAddr) -> Result<Stream, String> {
    let stream = dial(address).await?;
    let connecting = TlsConnector::from(Arc::clone(&ANY_CERTIFICATE)).connect(ServerName::from(address.ip()), stream);
    let connected = tokio::time::timeout(TLS_TIMEOUT, connecting).await;
    let stream = connected.map_err(|_| "net/http: TLS handshake timeout".to_owned())?;
    Ok(Box::new(stream.map_err(|error| error.to_string())?))
}

async fn dial(address: SocketAddr) -> Result<TcpStream, String> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| format!("dial tcp {address}: i/o timeout"))?;
    let stream = stream.map_err(|error| format!("dial tcp {address}: connect: {}", words(&error)))?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Go's words for an error of a connection.
pub(crate) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ => error.to_string(),
    }
}

/// Sends a request and waits for the header of the response. The connection ends with the body of the response, or
/// continues after an upgrade.
pub(in crate::apiserver) async fn exchange(
    stream: Stream,
    request: Request<Body>,
) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) = client_builder().handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await
}

/// Connections whose responses have heads of a bounded size.
pub(crate) fn client_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    builder
}

/// Why a request had no response.
pub(crate) fn reason(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.map_or_else(|| error.to_string(), words)
}

/// Copies bytes between two connections that are being upgraded, until either ends, or `closing`.
pub(in crate::apiserver) fn join(client: OnUpgrade, backend: OnUpgrade, closing: &CancellationToken) {
    let closing = closing.clone();
    tokio::spawn(async move {
        let (client, backend) = match tokio::try_join!(client, backend) {
            Ok((client, backend)) => (client, backend),
            Err(error) => return tracing::debug!(%error, "failed to upgrade connection"),
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        tokio::select! {
            () = closing.cancelled() => {}
            ended = copy_bidirectional_with_sizes(&mut client, &mut backend, COPY_BUFFER_BYTES, COPY_BUFFER_BYTES) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "upgraded connection failed");
                }
            }
        }
    });
}

/// Upstream does not verify certificates of pods.
static ANY_CERTIFICATE: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    Arc::new(unverified_tls::client_config(algorithms.supported_schemes()))
});

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_that_says_no_port_has_the_usual_one() {
        let node = |port: Value| {
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
        };
        for (port, wanted) in [
            (Value::Null, Some("10.0.0.1:10250")),
            (json!(0), Some("10.0.0.1:10250")),
            (json!(8443), Some("10.0.0.1:8443")),
            (json!(70000), None),
        ] {
            let address = node_address(&node(port)).map(|address| address.to_string());
            assert_eq!(address.as_deref(), wanted);
        }
    }

    #[test]
    fn only_addresses_of_one_host_in_a_network_are_proxied_to() {
        for (address, proxyable) in [
            ("10.244.1.5", true),
            ("203.0.113.7", true),
            ("fd00::5", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_proxyable(address.parse().unwrap()), proxyable, "{address}");
        }
    }

    /// Answers one request with its first line.
    async fn serve_once(mut stream: impl Duplex) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{line}", line.len());
        stream.write_all(answer.as_bytes()).await.expect("a client");
        stream.flush().await.expect("a client");
        let _ = stream.shutdown().await;
    }

    async fn ask(stream: Stream) -> String {
        use http_body_util::BodyExt as _;
        let request = Request::builder().uri("/x").body(Body::empty()).unwrap();
        let answer = exchange(stream, request).await.unwrap();
        String::from_utf8_lossy(&answer.into_body().collect().await.unwrap().to_bytes()).into_owned()
    }

    #[tokio::test]
    async fn backends_are_reached_with_and_without_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // A certificate of an unknown authority, for another name.
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["other.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let private = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let tls = builder
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let server = tokio::spawn(async move {
            serve_once(listener.accept().await.unwrap().0).await;
            serve_once(acceptor.accept(listener.accept().await.unwrap().0).await.unwrap()).await;
            // Hangs up on the last one.
            drop(listener.accept().await.unwrap());
        });
        assert_eq!(ask(connect(address).await.unwrap()).await, "GET /x HTTP/1.1");
        assert_eq!(ask(connect_tls(address).await.unwrap()).await, "GET /x HTTP/1.1");
        let request = Request::builder().uri("/x").body(Body::empty()).unwrap();
        let error = exchange(connect(address).await.unwrap(), request).await.unwrap_err();
        assert!(["EOF", "connection reset by peer"].contains(&&*reason(&error)), "{error}");
        server.await.unwrap();
        let Err(refused) = connect(address).await else { panic!("nobody listens") };
        assert_eq!(refused, format!("dial tcp {address}: connect: connection refused"));
    }
}
