//! Who may use the node's API: whoever the API server says may use the node. Callers show a certificate or a token;
//! nobody is anonymous.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension,
    extract::Request,
    http::{StatusCode, header},
    middleware::Next,
    response::Response,
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use windlass_kit::serve::Peer;

use super::{
    attributes::{subresources, verb},
    refuse,
};

/// How long an answer counts; upstream's.
const ALLOWED: Duration = Duration::from_secs(300);
const DENIED: Duration = Duration::from_secs(30);
const KNOWN: Duration = Duration::from_secs(120);
/// Answers that are remembered of each kind.
const REMEMBERED: usize = 1024;
/// The group of all whom somebody vouches for.
const AUTHENTICATED: &str = "system:authenticated";

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    fn of(peer: &Peer) -> Self {
        Self { name: peer.name.clone(), groups: peer.groups.clone(), ..Self::default() }.vouched_for()
    }

    fn vouched_for(mut self) -> Self {
        if !self.groups.iter().any(|g| g == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// Answers that count for a while.
#[derive(Debug)]
struct Answers<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Answers<K, V> {
    fn get(&self, question: &K, now: Instant) -> Option<V> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(question).filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    fn put(&self, question: K, answer: V, until: Instant, now: Instant) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= REMEMBERED {
            answers.retain(|_, (_, until)| now < *until);
        }
        if answers.len() >= REMEMBERED {
            answers.clear();
        }
        answers.insert(question, (answer, until));
    }
}

/// Name, uid and groups of who asks, verb, subresource.
type Question = (String, Option<String>, Vec<String>, &'static str, &'static str);

#[derive(Clone)]
pub(super) struct Gate {
    client: Client,
    node: Arc<str>,
    rights: Arc<Answers<Question, bool>>,
    /// By digest, so that no token is kept.
    tokens: Arc<Answers<[u8; 32], User>>,
}

impl Gate {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.into(), rights: Arc::default(), tokens: Arc::default() }
    }

    /// Who holds a token; `None` when nobody does.
    async fn holder(&self, token: &str) -> Result<Option<User>, kube::Error> {
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
        let now = Instant::now();
        if let Some(user) = self.tokens.get(&digest, now) {
            return Ok(Some(user));
        }
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let Some(info) = status.user.filter(|_| status.authenticated == Some(true)) else { return Ok(None) };
        let user = User {
            name: info.username.unwrap_or_default(),
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra,
        }
        .vouched_for();
        self.tokens.put(digest, user.clone(), now + KNOWN, now);
        Ok(Some(user))
    }

    async fn allows(&self, user: &User, verb: &'static str, sub: &'static str) -> Result<bool, kube::Error> {
        let question = (user.name.clone(), user.uid.clone(), user.groups.clone(), verb, sub);
        let now = Instant::now();
        if let Some(allowed) = self.rights.get(&question, now) {
            return Ok(allowed);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: user.extra.clone(),
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
        self.rights.put(question, allowed, now + if allowed { ALLOWED } else { DENIED }, now);
        Ok(allowed)
    }
}

/// The token that a request shows.
fn bearer(request: &Request) -> Option<String> {
    let shown = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, token) = shown.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?;
    Some(token.trim().to_owned()).filter(|t| !t.is_empty())
}

/// Who sends a request; the error is the answer.
async fn identify(gate: &Gate, user: Option<User>, token: Option<String>) -> Result<User, Response> {
    let unauthorized = || refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    if let Some(user) = user {
        return Ok(user);
    }
    let token = token.ok_or_else(unauthorized)?;
    match gate.holder(&token).await {
        Ok(user) => user.ok_or_else(unauthorized),
        Err(error) => {
            tracing::warn!(%error, "the API server could not be asked whose token this is");
            Err(unauthorized())
        }
    }
}

/// Lets a request through, or refuses it.
pub(super) async fn check(Extension(gate): Extension<Gate>, request: Request, next: Next) -> Response {
    let user = request.extensions().get::<Peer>().map(User::of);
    let user = match identify(&gate, user, bearer(&request)).await {
        Ok(user) => user,
        Err(answer) => return answer,
    };
    let (verb, rights) = (verb(request.method()), subresources(request.uri().path()));
    for sub in rights {
        match gate.allows(&user, verb, sub).await {
            Ok(true) => return next.run(request).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, user = user.name, "the API server could not be asked about rights on this node");
                let why = "the API server could not be asked about your rights";
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, why);
            }
        }
    }
    let why =
        format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])", user.name, rights.join(" "));
    refuse(StatusCode::FORBIDDEN, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_their_time_and_are_bounded() {
        let (answers, now) = (Answers::<usize, bool>::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        answers.put(1, true, later(10), now);
        assert_eq!(answers.get(&1, now), Some(true));
        assert_eq!(answers.get(&1, later(9)), Some(true));
        assert_eq!(answers.get(&1, later(10)), None);
        for question in 2..REMEMBERED + 2 {
            answers.put(question, false, later(100), later(20));
        }
        assert_eq!(answers.get(&2, later(20)), Some(false), "the old one has made room");
        answers.put(0, true, later(100), later(20));
        assert!(answers.0.lock().unwrap().len() <= REMEMBERED);
        assert_eq!(answers.get(&0, later(20)), Some(true));
    }

    #[test]
    fn whoever_shows_a_certificate_is_authenticated() {
        let user = User::of(&Peer { name: "metrics".into(), groups: vec!["monitoring".into()] });
        assert_eq!(user.groups, ["monitoring", AUTHENTICATED]);
        assert_eq!(user.clone().vouched_for(), user);
    }

    /// An API that knows one token and one right, and counts what it is asked.
    fn api(asked: Arc<Mutex<Vec<String>>>) -> Client {
        let router = axum::Router::new().fallback(move |request: Request| async move {
            use http_body_util::BodyExt as _;
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
            let spec = &review["spec"];
            let (question, status) = if path.ends_with("tokenreviews") {
                let user = serde_json::json!({"username": "reader", "uid": "7", "groups": ["readers"]});
                let status = if spec["token"] == "good" {
                    serde_json::json!({"authenticated": true, "user": user})
                } else {
                    serde_json::json!({"authenticated": false})
                };
                ("token".to_owned(), status)
            } else {
                let sub = spec["resourceAttributes"]["subresource"].as_str().expect("a subresource").to_owned();
                assert_eq!(spec["groups"], serde_json::json!(["readers", AUTHENTICATED]));
                assert_eq!((&spec["uid"], &spec["resourceAttributes"]["name"]), (&"7".into(), &"n1".into()));
                let status = serde_json::json!({"allowed": sub == "proxy"});
                (sub, status)
            };
            asked.lock().expect("a list").push(question);
            let mut answer = review;
            answer["status"] = status;
            (StatusCode::CREATED, axum::Json(answer))
        });
        Client::new(router, "default")
    }

    #[tokio::test]
    async fn rights_are_asked_for_in_their_order_and_remembered() {
        use tower::ServiceExt as _;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let gate = Gate::new(api(Arc::clone(&asked)), "n1");
        let router = axum::Router::new()
            .fallback(|| async { "through" })
            .layer(axum::middleware::from_fn(check))
            .layer(Extension(gate));
        let ask = async |path: &str, token: &str| {
            let mut request = Request::builder().uri(path);
            if !token.is_empty() {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        assert_eq!(ask("/configz", "").await, 401);
        assert_eq!(ask("/configz", "bad").await, 401);
        for _ in 0..3 {
            assert_eq!(ask("/configz", "good").await, 200);
            assert_eq!(ask("/metrics", "good").await, 403);
        }
        // A wrong token is asked about each time; all else once.
        assert_eq!(*asked.lock().unwrap(), ["token", "token", "configz", "proxy", "metrics"]);
        assert_eq!(ask("/configz", "bad").await, 401);
        assert_eq!(asked.lock().unwrap().len(), 6);
    }

    #[tokio::test]
    async fn the_api_server_is_asked_about_administrators_too() {
        let router = axum::Router::new().fallback(|request: Request| async move {
            use http_body_util::BodyExt as _;
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let mut review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
            // This cluster knows no such group.
            assert_eq!(review["spec"]["groups"], serde_json::json!(["system:masters", AUTHENTICATED]));
            review["status"] = serde_json::json!({"allowed": false});
            (StatusCode::CREATED, axum::Json(review))
        });
        let gate = Gate::new(Client::new(router, "default"), "n1");
        let user = User::of(&Peer { name: "admin".into(), groups: vec!["system:masters".into()] });
        assert!(!gate.allows(&user, "create", "proxy").await.unwrap());
    }
}
