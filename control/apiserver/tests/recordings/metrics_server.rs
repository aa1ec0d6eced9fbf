//! A server of metrics that gives recorded answers, to be registered with an API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use parking_lot::Mutex;
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use windlass_kit::percent::decoded;

use crate::autoscaling_cases::Case;

/// Code, content type and body.
type Answer = (u16, String, String);

/// A running server; it ends when it is dropped.
pub(crate) struct MetricsServer {
    pub(crate) port: u16,
    asked: Arc<Mutex<BTreeSet<String>>>,
    serving: JoinHandle<()>,
}

impl MetricsServer {
    /// Serves the answers of cases, and the groups to which they belong.
    pub(crate) async fn start(cases: &[&Case], groups: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut answers: BTreeMap<String, Answer> = cases.iter().flat_map(|case| case.answers()).collect();
        for (group, version) in groups {
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": format!("{group}/{version}"), "resources": []});
            let answer = (200, "application/json".to_owned(), list.to_string());
            answers.insert(format!("/apis/{group}/{version}"), answer);
        }
        let certified = rcgen::generate_simple_self_signed(["metrics.default.svc".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key.into())?;
        let listener = TcpListener::bind((windlass_tests::NODE_IP, 0)).await?;
        let port = listener.local_addr()?.port();
        let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let serving = tokio::spawn(serve(listener, config, Arc::new(answers), Arc::clone(&asked)));
        Ok(Self { port, asked, serving })
    }

    /// Paths and queries of the requests for metrics of namespaces.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().filter(|uri| uri.contains("/namespaces/")).cloned().collect()
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    answers: Arc<BTreeMap<String, Answer>>,
    asked: Arc<Mutex<BTreeSet<String>>>,
) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answers, asked) = (acceptor.clone(), Arc::clone(&answers), Arc::clone(&asked));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let answer = |request: Request<Incoming>| {
                asked.lock().insert(request.uri().path_and_query().map_or(String::new(), ToString::to_string));
                // A metric of all pods is one of `*`, which clients escape.
                let path = decoded(request.uri().path()).unwrap_or_default();
                let text = "text/plain; charset=utf-8".to_owned();
                let found = answers.get(&path).cloned();
                let (code, kind, body) = found.unwrap_or((404, text, "404 page not found\n".to_owned()));
                async move { Response::builder().status(code).header("Content-Type", kind).body(Full::<Bytes>::from(body)) }
            };
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}
