//! Who may use the node's API: whoever the API server says may use the node.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension,
    extract::Request,
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use windlass_kit::serve::Peer;

use super::refuse;

/// How long an answer counts; upstream's.
const ALLOWED: Duration = Duration::from_secs(300);
const DENIED: Duration = Duration::from_secs(30);
const REMEMBERED: usize = 1024;

/// User, verb, subresource.
type Question = (String, &'static str, &'static str);

#[derive(Clone)]
pub(super) struct Gate {
    client: Client,
    node: Arc<str>,
    answers: Arc<Mutex<HashMap<Question, (bool, Instant)>>>,
}

impl Gate {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.into(), answers: Arc::default() }
    }

    fn remembered(&self, question: &Question) -> Option<bool> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (allowed, at) = answers.get(question)?;
        (at.elapsed() < if *allowed { ALLOWED } else { DENIED }).then_some(*allowed)
    }

    async fn allows(&self, peer: &Peer, verb: &'static str, sub: &'static str) -> Result<bool, kube::Error> {
        // The authority's own administrators, among them the API server itself.
        if peer.groups.iter().any(|g| g == "system:masters") {
            return Ok(true);
        }
        let question = (peer.name.clone(), verb, sub);
        if let Some(allowed) = self.remembered(&question) {
            return Ok(allowed);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(peer.name.clone()),
                groups: Some(peer.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(sub.to_owned()),
                    name: Some(self.node.to_string()),
                    version: Some("v1".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let allowed = api.create(&PostParams::default(), &review).await?.status.is_some_and(|s| s.allowed);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= REMEMBERED {
            answers.clear();
        }
        answers.insert(question, (allowed, Instant::now()));
        Ok(allowed)
    }
}

/// Lets a request through, or refuses it.
pub(super) async fn check(Extension(gate): Extension<Gate>, request: Request, next: Next) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    let verb = match *request.method() {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let path = request.uri().path();
    let sub = if path.starts_with("/metrics") {
        "metrics"
    } else if path.starts_with("/stats") {
        "stats"
    } else if path.starts_with("/healthz") {
        "healthz"
    } else if path == "/pods" {
        "pods"
    } else {
        "proxy"
    };
    match gate.allows(&peer, verb, sub).await {
        Ok(true) => next.run(request).await,
        Ok(false) => refuse(
            StatusCode::FORBIDDEN,
            format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{sub}])", peer.name),
        ),
        Err(error) => {
            tracing::warn!(%error, user = peer.name, "the API server could not be asked about rights on this node");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "the API server could not be asked about your rights")
        }
    }
}
