//! A server with TLS at the address of the node, which a real control plane reaches. Its certificate is its own authority.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// An answer.
pub(crate) type Answered = Result<Response<Full<Bytes>>, http::Error>;

/// A running server; it ends when it is dropped.
pub(crate) struct TlsServer {
    pub(crate) port: u16,
    /// In PEM.
    pub(crate) certificate: String,
    serving: JoinHandle<()>,
}

impl TlsServer {
    /// Serves under a name, or an address.
    pub(crate) async fn start<F, A>(name: &str, answer: F) -> anyhow::Result<Self>
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Answered> + Send + 'static,
    {
        let certified = rcgen::generate_simple_self_signed([name.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key.into())?;
        let listener = TcpListener::bind((windlass_tests::NODE_IP, 0)).await?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), answer));
        Ok(Self { port, certificate: certified.cert.pem(), serving })
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve<F, A>(listener: TcpListener, acceptor: TlsAcceptor, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answered> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}
