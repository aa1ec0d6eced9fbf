//! A webhook for tests: HTTPS, whose answers a test decides, and which remembers what it was asked.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What becomes of a call.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// The `response` of the review, without its uid.
    Answer(Value),
    /// A code, and a body.
    Raw(u16, String),
    /// An answer that comes so much later.
    Late(Duration, Value),
    /// The connection is closed without an answer.
    HangUp,
}

impl Act {
    pub(crate) fn allow() -> Self {
        Self::Answer(json!({"allowed": true}))
    }

    pub(crate) fn deny(why: &str) -> Self {
        Self::Answer(json!({"allowed": false, "status": {"message": why}}))
    }

    pub(crate) fn patch(operations: &Value) -> Self {
        let patch = STANDARD.encode(operations.to_string());
        Self::Answer(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
    }
}

/// What a call is answered with: by its path, and its review.
pub(crate) type Decide = dyn Fn(&str, &Value) -> Act + Send + Sync;

/// A call: its path with the query, and its body.
pub(crate) type Call = (String, Value);

/// The server, which ends with the runtime of the test.
#[derive(Clone)]
pub(crate) struct WebhookServer {
    pub(crate) address: SocketAddr,
    /// The certificate of its authority, in PEM.
    pub(crate) ca: String,
    /// Its own certificate, in PEM.
    pub(crate) certificate: String,
    calls: Arc<Mutex<Vec<Call>>>,
    decide: Arc<Mutex<Arc<Decide>>>,
    connections: Arc<Mutex<usize>>,
}

impl WebhookServer {
    /// Serves at an address of this machine, under these names, too.
    pub(crate) async fn start(address: &str, names: &[&str]) -> Self {
        let (authority, certificate, key) = certificates(&[&[address], names].concat());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a certificate");
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let server = Self {
            address: listener.local_addr().expect("an address"),
            ca: authority.pem(),
            certificate: certificate.pem(),
            calls: Arc::default(),
            decide: Arc::new(Mutex::new(Arc::new(|_: &str, _: &Value| Act::allow()))),
            connections: Arc::default(),
        };
        tokio::spawn(server.clone().accept(listener, TlsAcceptor::from(Arc::new(tls))));
        server
    }

    async fn accept(self, listener: TcpListener, acceptor: TlsAcceptor) {
        while let Ok((stream, _)) = listener.accept().await {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            *self.connections.lock().expect("a lock") += 1;
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(|request| server.answer(request));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let path = request.uri().to_string();
        let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        self.calls.lock().expect("a lock").push((path.clone(), review.clone()));
        let decide = Arc::clone(&self.decide.lock().expect("a lock"));
        let (code, body) = match decide(path.split('?').next().unwrap_or(""), &review) {
            Act::Raw(code, body) => (code, body),
            Act::Answer(response) => (200, answered(&review, response)),
            Act::Late(wait, response) => {
                tokio::time::sleep(wait).await;
                (200, answered(&review, response))
            }
            Act::HangUp => return Err(std::io::Error::other("the test wants no answer")),
        };
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = code.try_into().expect("a code");
        response.headers_mut().insert("content-type", kind.parse().expect("a value"));
        Ok(response)
    }

    /// Decides on calls from now on.
    pub(crate) fn decide(&self, decide: impl Fn(&str, &Value) -> Act + Send + Sync + 'static) {
        *self.decide.lock().expect("a lock") = Arc::new(decide);
    }

    /// The calls since the last question.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().expect("a lock"))
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().expect("a lock")
    }

    /// A `clientConfig` with the URL of a path.
    pub(crate) fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://{}{path}", self.address), "caBundle": STANDARD.encode(&self.ca)})
    }
}

fn answered(review: &Value, mut response: Value) -> String {
    response["uid"] = review["request"]["uid"].clone();
    json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}).to_string()
}

/// An authority, and a certificate and key for these names.
pub(crate) fn certificates(names: &[&str]) -> (rcgen::Certificate, rcgen::Certificate, rcgen::KeyPair) {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "webhook-ca");
    let signed = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let leaf = rcgen::CertificateParams::new(names).expect("names").signed_by(&key, &issuer).expect("a certificate");
    (signed, leaf, key)
}
