//! Probes the API over its own socket, without credentials, by a connection slot that other clients cannot take.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::body::Bytes;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use windlass_kit::serve::{self, ReservedAddresses, ServeError};

/// A name in every certificate of the server.
const SERVER_NAME: &str = "kubernetes";

/// A probe of the API's own socket.
#[derive(Clone)]
pub struct LoopbackProbe {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    reserved: ReservedAddresses,
}

impl std::fmt::Debug for LoopbackProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoopbackProbe").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why the probe failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("failed to connect to {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    /// The request failed.
    #[error("the request failed: {0}")]
    Request(#[from] hyper::Error),
    /// The request could not be built.
    #[error("failed to build the request: {0}")]
    Make(String),
}

impl LoopbackProbe {
    /// A probe of the API at the first of `listen`, whose certificate is of this CA.
    pub(crate) fn new(listen: &[SocketAddr], ca_pem: &str, reserved: ReservedAddresses) -> Result<Self, ServeError> {
        let listen = listen.first().copied().unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let ip = match listen.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let wrong = |why: rustls::Error| ServeError::Certificate(why.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in serve::certificates(ca_pem)? {
            roots.add(certificate).map_err(wrong)?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address: SocketAddr::new(ip, listen.port()), tls: Arc::new(tls), reserved })
    }

    /// Sends one request over a new connection. Any response counts.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn probe(&self) -> Result<(), Error> {
        let failed = |why| Error::Connect(self.address, why);
        let make = |why: &dyn std::fmt::Display| Error::Make(why.to_string());
        let socket = if self.address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
        // Bound first, so that the slot is reserved before the server accepts the connection. The address is this
        // machine's own, so it can be the source as well.
        socket.bind(SocketAddr::new(self.address.ip(), 0)).map_err(failed)?;
        let _slot = self.reserved.reserve(socket.local_addr().map_err(failed)?);
        let stream = socket.connect(self.address).await.map_err(failed)?;
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| make(&e))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.map_err(failed)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = hyper::Request::get("/livez").header("host", SERVER_NAME).header("connection", "close");
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).map_err(|e| make(&e))?);
        tokio::pin!(response, connection);
        tokio::select! {
            response = &mut response => response.map(drop)?,
            ended = &mut connection => {
                ended?;
                response.await.map(drop)?;
            }
        }
        Ok(())
    }
}
