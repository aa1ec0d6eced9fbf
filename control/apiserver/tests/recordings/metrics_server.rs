//! A server of metrics that gives recorded answers, to be registered with an API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::json;
use windlass_kit::percent::decoded;

use crate::{
    autoscaling_cases::Case,
    tls_server::{Answered, TlsServer},
};

/// Code, content type and body.
type Answer = (u16, String, String);

/// A running server; it ends when it is dropped.
pub(crate) struct MetricsServer {
    server: TlsServer,
    asked: Arc<Mutex<BTreeSet<String>>>,
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
        let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (seen, answers) = (Arc::clone(&asked), Arc::new(answers));
        let answer = move |request: Request<Incoming>| {
            seen.lock().insert(request.uri().path_and_query().map_or(String::new(), ToString::to_string));
            std::future::ready(answer_of(&answers, request.uri().path()))
        };
        Ok(Self { server: TlsServer::start("metrics.default.svc", answer).await?, asked })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    /// Paths and queries of the requests for metrics of namespaces.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().filter(|uri| uri.contains("/namespaces/")).cloned().collect()
    }
}

fn answer_of(answers: &BTreeMap<String, Answer>, path: &str) -> Answered {
    // A metric of all pods is one of `*`, which clients escape.
    let path = decoded(path).unwrap_or_default();
    let text = "text/plain; charset=utf-8".to_owned();
    let found = answers.get(&path).cloned();
    let (code, kind, body) = found.unwrap_or((404, text, "404 page not found\n".to_owned()));
    Response::builder().status(code).header("Content-Type", kind).body(Full::<Bytes>::from(body))
}
