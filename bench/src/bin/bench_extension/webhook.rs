//! A webhook that admits everything, as quickly as it can.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use anyhow::Context as _;
use memchr::memmem;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring},
};

/// The webhook, which ends with the runtime.
pub(crate) struct Webhook {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: CertificateDer<'static>,
    /// Its certificate in PEM.
    pub(crate) pem: String,
    last: Arc<Mutex<Vec<u8>>>,
}

impl Webhook {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, last) = (listener.local_addr()?, Arc::default());
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), Arc::clone(&last)));
        Ok(Self { address, certificate, pem: made.cert.pem(), last })
    }

    /// The body of the last review.
    pub(crate) fn last_review(&self) -> anyhow::Result<String> {
        let last = self.last.lock().map_err(|_| anyhow::anyhow!("the webhook panicked"))?.clone();
        anyhow::ensure!(!last.is_empty(), "the webhook was not called");
        Ok(String::from_utf8(last)?)
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, last: Arc<Mutex<Vec<u8>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, acceptor.clone(), Arc::clone(&last)));
    }
}

/// Answers one review after the other, until the client has enough.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, last: Arc<Mutex<Vec<u8>>>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut buffer = Vec::new();
    loop {
        let body = loop {
            if let Some(end) = memmem::find(&buffer, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
                let length: usize = length.context("a length")?.trim().parse()?;
                if buffer.len() >= end + 4 + length {
                    break end + 4..end + 4 + length;
                }
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let review = buffer[body.clone()].to_vec();
        buffer.drain(..body.end);
        let uid = uid_of(&review).context("a uid")?;
        let answer = format!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{{"uid":"{uid}","allowed":true}}}}"#
        );
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", answer.len());
        *last.lock().map_err(|_| anyhow::anyhow!("another connection panicked"))? = review;
        stream.write_all((head + &answer).as_bytes()).await?;
        stream.flush().await?;
    }
}

/// The uid of the request: of objects' uids none is a uid of version 4 right behind `request`.
fn uid_of(review: &[u8]) -> Option<String> {
    let review: serde_json::Value = serde_json::from_slice(review).ok()?;
    review["request"]["uid"].as_str().map(str::to_owned)
}
