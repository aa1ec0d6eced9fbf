//! Whether the API answers over its own socket: this process asks as anybody would, with no name and no rights. Its
//! connection has a place that others cannot take.

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
use windlass_kit::serve::{self, Reserved, ServeError};

/// Every certificate of the server has this name, whatever addresses it has.
const SERVER_NAME: &str = "kubernetes";

/// The way to the API's own socket.
#[derive(Clone)]
pub struct OwnApi {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    reserved: Reserved,
}

impl std::fmt::Debug for OwnApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnApi").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why the API did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error("the connection to {0} failed: {1}")]
    Connect(SocketAddr, std::io::Error),
    /// HTTP.
    #[error("the request failed: {0}")]
    Request(#[from] hyper::Error),
    /// A name or a request that cannot be written.
    #[error("the request could not be made: {0}")]
    Make(String),
}

impl OwnApi {
    /// The API that listens on the first of `listen`, with a certificate of this authority.
    pub(crate) fn new(listen: &[SocketAddr], ca_pem: &str, reserved: Reserved) -> Result<Self, ServeError> {
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

    /// Asks once, by a connection of its own. Whatever is answered is an answer.
    ///
    /// # Errors
    /// Says what failed.
    pub async fn ask(&self) -> Result<(), Error> {
        let failed = |why| Error::Connect(self.address, why);
        let make = |why: &dyn std::fmt::Display| Error::Make(why.to_string());
        let socket = if self.address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
        // Bound first, so that the place is reserved before anybody sees the connection. The address is this
        // machine's own, so it is a source as well.
        socket.bind(SocketAddr::new(self.address.ip(), 0)).map_err(failed)?;
        let _place = self.reserved.reserve(socket.local_addr().map_err(failed)?);
        let stream = socket.connect(self.address).await.map_err(failed)?;
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| make(&e))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.map_err(failed)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = hyper::Request::get("/livez").header("host", SERVER_NAME).header("connection", "close");
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).map_err(|e| make(&e))?);
        tokio::pin!(answer, connection);
        tokio::select! {
            answer = &mut answer => answer.map(drop)?,
            ended = &mut connection => {
                ended?;
                answer.await.map(drop)?;
            }
        }
        Ok(())
    }
}
