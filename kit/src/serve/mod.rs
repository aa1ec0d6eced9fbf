//! Sockets of HTTP servers: TLS, client certificates, connections that end in order, ports that are taken.

mod holder;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// A client that does not finish its handshake is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time that open requests have to end; watches are cut.
const DRAIN: Duration = Duration::from_secs(3);

/// Who a verified client certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The subject's common name.
    pub name: String,
    /// The subject's organisations.
    pub groups: Vec<String>,
}

/// Why a server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port could not be had.
    #[error("{what} could not listen on {address}: {reason}{holder}")]
    Listen {
        /// Who wanted it.
        what: &'static str,
        /// Which address.
        address: SocketAddr,
        /// Why not.
        reason: String,
        /// Who has it, if it can be told.
        holder: String,
    },
    /// A certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
}

/// Takes a port for `what`.
///
/// # Errors
/// Names the port and, when another process has it, that process.
pub async fn listen(what: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|e| {
        let holder = (e.kind() == std::io::ErrorKind::AddrInUse).then(|| holder::of(address.port())).flatten();
        ServeError::Listen { what, address, reason: e.to_string(), holder: holder.unwrap_or_default() }
    })
}

/// Serves without TLS until `shutdown`: for loopback only.
pub async fn serve_plain(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await });
    if let Err(error) = served.await {
        tracing::warn!(%error, "a server ended");
    }
}

/// TLS with certificates of clients, which are asked for but not demanded.
///
/// # Errors
/// When one of the PEM texts does not hold what it should.
pub fn tls_config(cert_pem: &str, key_pem: &str, client_ca_pem: &str) -> Result<ServerConfig, ServeError> {
    let wrong = |e: &dyn std::fmt::Display| ServeError::Certificate(e.to_string());
    let chain = certificates(cert_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| wrong(&e))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(client_ca_pem)? {
        roots.add(certificate).map_err(|e| wrong(&e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|e| wrong(&e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| wrong(&e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates in a PEM text.
///
/// # Errors
/// When it holds something else.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| ServeError::Certificate(e.to_string()))
}

/// Serves over TLS until `shutdown`, then lets open requests end. Requests carry a [`Peer`] extension when
/// the client has shown a certificate.
pub async fn serve_tls(listener: TcpListener, tls: ServerConfig, router: Router, shutdown: CancellationToken) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: a moment later there may be some.
                tracing::warn!(%error, "a server could not take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, router, watcher) = (acceptor.clone(), router.clone(), graceful.watcher());
        tokio::spawn(async move {
            let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake took too long"),
            };
            let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let peer = peer.and_then(identity);
            let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
                if let Some(peer) = &peer {
                    request.extensions_mut().insert(peer.clone());
                }
                let mut router = router.clone();
                async move { router.call(request.map(Body::new)).await }
            });
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(30))
                .max_buf_size(64 << 10);
            builder
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(Some(Duration::from_secs(30)))
                .max_header_list_size(64 << 10);
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection.into_owned()).await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

/// Common name and organisations of a certificate that TLS has verified.
fn identity(certificate: &CertificateDer<'_>) -> Option<Peer> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    Some(Peer { name, groups })
}
