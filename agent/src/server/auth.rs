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
use tokio::sync::Semaphore;
use windlass_kit::serve::{self, Caller, ClientIdentity};

use super::{
    attributes::{subresources, verb},
    refuse,
};

/// How long an answer counts; upstream's.
const ALLOWED: Duration = Duration::from_secs(300);
const DENIED: Duration = Duration::from_secs(30);
const KNOWN: Duration = Duration::from_secs(120);
/// How long a token that is nobody's stays so: whoever shows wrong ones asks the API server no more often.
const REFUSED: Duration = Duration::from_secs(10);
/// Tokens that are reviewed at once, and how long others wait for it.
const MOST_REVIEWS: usize = 16;
const REVIEW_WAIT: Duration = Duration::from_secs(5);
/// Answers that are remembered of each kind.
const REMEMBERED: usize = 1024;
/// The group of all whom somebody vouches for.
const AUTHENTICATED: &str = "system:authenticated";

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    fn of(peer: &ClientIdentity) -> Self {
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
            // As many as make it worth the look.
            let mut ends: Vec<Instant> = answers.values().map(|(_, until)| *until).collect();
            let (_, middle, _) = ends.select_nth_unstable(REMEMBERED / 2);
            let middle = *middle;
            answers.retain(|_, (_, until)| *until > middle);
        }
        answers.insert(question, (answer, until));
    }
}

/// Who asks, with all that an authorizer may decide by, verb, subresource.
type Question = (User, &'static str, &'static str);

#[derive(Clone)]
pub(super) struct Gate {
    client: Client,
    node: Arc<str>,
    rights: Arc<Answers<Question, bool>>,
    /// By digest, so that no token is kept.
    tokens: Arc<Answers<[u8; 32], User>>,
    /// Tokens that are nobody's; apart, so that they push no good one out.
    refused: Arc<Answers<[u8; 32], ()>>,
    /// Reviews of tokens that may be under way.
    reviews: Arc<Semaphore>,
    get_needs_create: bool,
}

/// Why it is not known who holds a token.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("too many tokens wait to be reviewed")]
    Busy,
}

impl Gate {
    pub(super) fn new(client: Client, node: &str, get_needs_create: bool) -> Self {
        Self {
            client,
            node: node.into(),
            rights: Arc::default(),
            tokens: Arc::default(),
            refused: Arc::default(),
            reviews: Arc::new(Semaphore::new(MOST_REVIEWS)),
            get_needs_create,
        }
    }

    /// Who holds a token; `None` when nobody does.
    async fn holder(&self, token: &str) -> Result<Option<User>, Unknown> {
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
        let now = Instant::now();
        if let Some(user) = self.tokens.get(&digest, now) {
            return Ok(Some(user));
        }
        if self.refused.get(&digest, now).is_some() {
            return Ok(None);
        }
        let permit = tokio::time::timeout(REVIEW_WAIT, self.reviews.acquire()).await;
        let Ok(Ok(_permit)) = permit else { return Err(Unknown::Busy) };
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let Some(info) = status.user.filter(|_| status.authenticated == Some(true)) else {
            self.refused.put(digest, (), now + REFUSED, now);
            return Ok(None);
        };
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
        let question = (user.clone(), verb, sub);
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

/// What a request shows of who sends it.
struct Shown {
    user: Option<User>,
    token: Option<String>,
    caller: Option<Caller>,
    /// A page of another origin uses a certificate of its browser.
    by_foreign_page: bool,
}

impl Shown {
    fn by(request: &Request) -> Self {
        let (extensions, headers) = (request.extensions(), request.headers());
        let user = extensions.get::<ClientIdentity>().map(User::of);
        let by_foreign_page = user.is_some() && headers.contains_key(header::UPGRADE) && !serve::is_own_origin(headers);
        let token = serve::bearer(headers).map(str::to_owned);
        Self { user, token, caller: extensions.get::<Caller>().cloned(), by_foreign_page }
    }
}

/// Who sends a request; the error is the answer.
async fn identify(gate: &Gate, shown: Shown) -> Result<User, Response> {
    let unauthorized = || refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    if shown.by_foreign_page {
        let why = "a page of another origin may not use the client certificate of its browser here";
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    if let Some(user) = shown.user {
        return Ok(user);
    }
    let token = shown.token.ok_or_else(unauthorized)?;
    let caller = shown.caller.as_ref();
    match gate.holder(&token).await {
        Ok(Some(user)) => {
            if let Some(caller) = caller {
                caller.authenticated();
            }
            Ok(user)
        }
        Ok(None) => {
            let client = caller.and_then(Caller::address).map(|address| address.ip().to_string());
            tracing::warn!(client, "a request was refused: the API server does not know its token");
            Err(unauthorized())
        }
        Err(error @ Unknown::Busy) => Err(refuse(StatusCode::TOO_MANY_REQUESTS, error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "the API server could not be asked whose token this is");
            Err(unauthorized())
        }
    }
}

/// Lets a request through, or refuses it.
pub(super) async fn check(Extension(gate): Extension<Gate>, request: Request, next: Next) -> Response {
    let user = match identify(&gate, Shown::by(&request)).await {
        Ok(user) => user,
        Err(answer) => return answer,
    };
    let path = request.uri().path();
    let (verb, rights) = (verb(request.method(), path, !gate.get_needs_create), subresources(path));
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
        answers.put(0, true, later(200), later(20));
        assert!(answers.0.lock().unwrap().len() <= REMEMBERED);
        for question in 2 * REMEMBERED..3 * REMEMBERED + 2 {
            answers.put(question, false, later(100), later(20));
        }
        assert_eq!(answers.get(&0, later(20)), Some(true), "what counts for longest is kept");
    }

    #[test]
    fn whoever_shows_a_certificate_is_authenticated() {
        let user = User::of(&ClientIdentity { name: "metrics".into(), groups: vec!["monitoring".into()] });
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
        let gate = Gate::new(api(Arc::clone(&asked)), "n1", true);
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
        for _ in 0..100 {
            assert_eq!(ask("/configz", "bad").await, 401);
        }
        assert_eq!(*asked.lock().unwrap(), ["token", "token", "configz", "proxy", "metrics"]);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_make_few_reviews_at_once_and_push_out_no_good_one() {
        let under_way = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (good, counted) = (api(Arc::clone(&asked)), Arc::clone(&under_way));
        let router = axum::Router::new().fallback(move |request: Request| {
            let (good, counted) = (good.clone(), Arc::clone(&counted));
            async move {
                use http_body_util::BodyExt as _;
                use std::sync::atomic::Ordering::SeqCst;
                assert!(counted.fetch_add(1, SeqCst) < MOST_REVIEWS, "too many reviews at once");
                tokio::time::sleep(Duration::from_millis(1)).await;
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes().to_vec();
                let answer = good.request_text(http::Request::from_parts(parts, body)).await.expect("a review");
                counted.fetch_sub(1, SeqCst);
                (StatusCode::CREATED, [("content-type", "application/json")], answer)
            }
        });
        let gate = Gate::new(Client::new(router, "default"), "n1", true);
        assert!(gate.holder("good").await.unwrap().is_some());
        let wrong = (0..3 * REMEMBERED).map(|n| {
            let gate = gate.clone();
            tokio::spawn(
                async move { matches!(gate.holder(&format!("wrong {n}")).await, Ok(None) | Err(Unknown::Busy)) },
            )
        });
        for answer in wrong.collect::<Vec<_>>() {
            assert!(answer.await.unwrap());
        }
        let before = asked.lock().unwrap().len();
        assert!(gate.holder("good").await.unwrap().is_some());
        assert_eq!(asked.lock().unwrap().len(), before, "the good token is remembered");
    }

    #[tokio::test]
    async fn a_right_is_remembered_with_all_that_it_was_decided_by() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let gate = Gate::new(api(Arc::clone(&asked)), "n1", true);
        let groups = vec!["readers".to_owned(), AUTHENTICATED.to_owned()];
        let user = |scope: &str| User {
            name: "reader".into(),
            uid: Some("7".into()),
            groups: groups.clone(),
            extra: Some([("scope".to_owned(), vec![scope.to_owned()])].into()),
        };
        for scope in ["a", "b", "a"] {
            assert!(gate.allows(&user(scope), "get", "proxy").await.unwrap());
        }
        assert_eq!(asked.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn pages_of_other_origins_use_no_certificate() {
        use tower::ServiceExt as _;
        let yes = axum::Router::new().fallback(|request: Request| async move {
            use http_body_util::BodyExt as _;
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let mut review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
            review["status"] = serde_json::json!({"allowed": true});
            (StatusCode::CREATED, axum::Json(review))
        });
        let gate = Gate::new(Client::new(yes, "default"), "n1", true);
        let router =
            axum::Router::new().fallback(|| async {}).layer(axum::middleware::from_fn(check)).layer(Extension(gate));
        let ask = async |origin: &str| {
            let admin = ClientIdentity { name: "admin".into(), groups: vec!["system:masters".into()] };
            let request = Request::get("/exec/d/p/c").header("host", "n:10250").header("upgrade", "websocket");
            let request = request.header("origin", origin).extension(admin).body(axum::body::Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        assert_eq!((ask("https://evil").await, ask("https://n:10250").await), (403, 200));
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
        let gate = Gate::new(Client::new(router, "default"), "n1", true);
        let user = User::of(&ClientIdentity { name: "admin".into(), groups: vec!["system:masters".into()] });
        assert!(!gate.allows(&user, "create", "proxy").await.unwrap());
    }
}
