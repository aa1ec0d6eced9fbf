//! Authentication and authorization of the node's API by webhooks of the API server (TokenReview, SubjectAccessReview).
//! Callers present a client certificate or a token; there is no anonymous access.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
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
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use windlass_kit::serve::{self, Caller, ClientIdentity, headers::NotText};

use super::{
    authz::{subresources, verb},
    refuse,
};

/// How long decisions are cached; upstream's.
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
const TOKEN_TTL: Duration = Duration::from_secs(120);
/// How long an invalid token is cached, so that its caller causes no more reviews.
const INVALID_TOKEN_TTL: Duration = Duration::from_secs(10);
/// Most concurrent TokenReviews, and how long others wait for a slot.
const MAX_CONCURRENT_REVIEWS: usize = 16;
const REVIEW_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most entries of each cache.
const MAX_CACHE_ENTRIES: usize = 1024;
/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    fn of(peer: &ClientIdentity) -> Self {
        Self { name: peer.name.clone(), groups: peer.groups.clone(), ..Self::default() }.into_authenticated()
    }

    fn into_authenticated(mut self) -> Self {
        if !self.groups.iter().any(|g| g == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// A bounded cache whose entries expire.
#[derive(Debug)]
struct TtlCache<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let entries = self.0.lock();
        entries.get(key).filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    fn put(&self, key: K, answer: V, until: Instant, now: Instant) {
        let mut entries = self.0.lock();
        if entries.len() >= MAX_CACHE_ENTRIES {
            entries.retain(|_, (_, until)| now < *until);
        }
        if entries.len() >= MAX_CACHE_ENTRIES {
            // Drop half at once, so that this is rare.
            let mut ends: Vec<Instant> = entries.values().map(|(_, until)| *until).collect();
            let (_, middle, _) = ends.select_nth_unstable(MAX_CACHE_ENTRIES / 2);
            let middle = *middle;
            entries.retain(|_, (_, until)| *until > middle);
        }
        entries.insert(key, (answer, until));
    }
}

/// User, verb and subresource.
type AccessKey = (User, &'static str, &'static str);

#[derive(Clone)]
pub(super) struct AuthFilter {
    client: Client,
    node: Arc<str>,
    decisions: Arc<TtlCache<AccessKey, bool>>,
    /// By digest, so that no token is stored.
    tokens: Arc<TtlCache<[u8; 32], User>>,
    /// Invalid tokens; separate, so that they evict no valid one.
    invalid_tokens: Arc<TtlCache<[u8; 32], ()>>,
    /// Slots of TokenReviews.
    review_slots: Arc<Semaphore>,
    get_needs_create: bool,
}

/// Why a token could not be reviewed.
#[derive(Debug, thiserror::Error)]
enum AuthenticationError {
    #[error("{}", windlass_kit::client::message(.0))]
    Api(#[from] kube::Error),
    #[error("too many tokens wait to be reviewed")]
    Busy,
}

impl AuthFilter {
    pub(super) fn new(client: Client, node: &str, get_needs_create: bool) -> Self {
        Self {
            client,
            node: node.into(),
            decisions: Arc::default(),
            tokens: Arc::default(),
            invalid_tokens: Arc::default(),
            review_slots: Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS)),
            get_needs_create,
        }
    }

    /// The user of a token; `None` if it is invalid.
    async fn authenticate(&self, token: &str) -> Result<Option<User>, AuthenticationError> {
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
        let now = Instant::now();
        if let Some(user) = self.tokens.get(&digest, now) {
            return Ok(Some(user));
        }
        if self.invalid_tokens.get(&digest, now).is_some() {
            return Ok(None);
        }
        let permit = tokio::time::timeout(REVIEW_QUEUE_TIMEOUT, self.review_slots.acquire()).await;
        let Ok(Ok(_permit)) = permit else { return Err(AuthenticationError::Busy) };
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let Some(info) = status.user.filter(|_| status.authenticated == Some(true)) else {
            self.invalid_tokens.put(digest, (), now + INVALID_TOKEN_TTL, now);
            return Ok(None);
        };
        let user = User {
            name: info.username.unwrap_or_default(),
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra,
        }
        .into_authenticated();
        self.tokens.put(digest, user.clone(), now + TOKEN_TTL, now);
        Ok(Some(user))
    }

    async fn authorize(&self, user: &User, verb: &'static str, sub: &'static str) -> Result<bool, kube::Error> {
        let key = (user.clone(), verb, sub);
        let now = Instant::now();
        if let Some(allowed) = self.decisions.get(&key, now) {
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
        self.decisions.put(key, allowed, now + if allowed { ALLOWED_TTL } else { DENIED_TTL }, now);
        Ok(allowed)
    }
}

/// The credentials of a request.
struct RequestCredentials {
    user: Option<User>,
    /// An error if the header is present but unreadable.
    token: Result<Option<String>, NotText>,
    caller: Option<Caller>,
    /// A page of another origin uses its browser's client certificate.
    cross_origin: bool,
}

impl RequestCredentials {
    fn by(request: &Request) -> Self {
        let (extensions, headers) = (request.extensions(), request.headers());
        let user = extensions.get::<ClientIdentity>().map(User::of);
        let cross_origin = user.is_some() && headers.contains_key(header::UPGRADE) && !serve::is_own_origin(headers);
        let token = serve::bearer(headers).map(|token| token.map(str::to_owned));
        Self { user, token, caller: extensions.get::<Caller>().cloned(), cross_origin }
    }
}

/// Authenticates a request; the error is the response.
async fn authenticate_request(filter: &AuthFilter, credentials: RequestCredentials) -> Result<User, Response> {
    let unauthorized = || refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    if credentials.cross_origin {
        let why = "a page of another origin may not use the client certificate of its browser here";
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    if let Some(user) = credentials.user {
        return Ok(user);
    }
    let token = credentials.token.map_err(|why| refuse(StatusCode::BAD_REQUEST, why.to_string()))?;
    let token = token.ok_or_else(unauthorized)?;
    let caller = credentials.caller.as_ref();
    match filter.authenticate(&token).await {
        Ok(Some(user)) => {
            if let Some(caller) = caller {
                caller.authenticated();
            }
            Ok(user)
        }
        Ok(None) => {
            let client = caller.and_then(Caller::address).map(|address| address.ip().to_string());
            tracing::warn!(client, "request refused: invalid token");
            Err(unauthorized())
        }
        Err(error @ AuthenticationError::Busy) => Err(refuse(StatusCode::TOO_MANY_REQUESTS, error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "failed to review token");
            Err(unauthorized())
        }
    }
}

/// Middleware: authenticates and authorizes a request.
pub(super) async fn check(Extension(filter): Extension<AuthFilter>, request: Request, next: Next) -> Response {
    let user = match authenticate_request(&filter, RequestCredentials::by(&request)).await {
        Ok(user) => user,
        Err(answer) => return answer,
    };
    let path = request.uri().path();
    let (verb, decisions) = (verb(request.method(), path, !filter.get_needs_create), subresources(path));
    for sub in decisions {
        match filter.authorize(&user, verb, sub).await {
            Ok(true) => return next.run(request).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, user = user.name, "failed to review access");
                let why = "the API server could not be asked about your rights";
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, why);
            }
        }
    }
    let why = format!(
        "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
        user.name,
        decisions.join(" ")
    );
    refuse(StatusCode::FORBIDDEN, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_their_time_and_are_bounded() {
        let (entries, now) = (TtlCache::<usize, bool>::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        entries.put(1, true, later(10), now);
        assert_eq!(entries.get(&1, now), Some(true));
        assert_eq!(entries.get(&1, later(9)), Some(true));
        assert_eq!(entries.get(&1, later(10)), None);
        for key in 2..MAX_CACHE_ENTRIES + 2 {
            entries.put(key, false, later(100), later(20));
        }
        assert_eq!(entries.get(&2, later(20)), Some(false), "the old one has made room");
        entries.put(0, true, later(200), later(20));
        assert!(entries.0.lock().len() <= MAX_CACHE_ENTRIES);
        for key in 2 * MAX_CACHE_ENTRIES..3 * MAX_CACHE_ENTRIES + 2 {
            entries.put(key, false, later(100), later(20));
        }
        assert_eq!(entries.get(&0, later(20)), Some(true), "what counts for longest is kept");
    }

    #[test]
    fn whoever_shows_a_certificate_is_authenticated() {
        let user = User::of(&ClientIdentity {
            name: "metrics".into(),
            groups: vec!["monitoring".into()],
            ..ClientIdentity::default()
        });
        assert_eq!(user.groups, ["monitoring", AUTHENTICATED]);
        assert_eq!(user.clone().into_authenticated(), user);
    }

    /// An API that knows one token and one right, and records its requests.
    fn api(asked: Arc<Mutex<Vec<String>>>) -> Client {
        let router = axum::Router::new().fallback(move |request: Request| async move {
            use http_body_util::BodyExt as _;
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
            let spec = &review["spec"];
            let (key, status) = if path.ends_with("tokenreviews") {
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
            asked.lock().push(key);
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
        let filter = AuthFilter::new(api(Arc::clone(&asked)), "n1", true);
        let router = axum::Router::new()
            .fallback(|| async { "through" })
            .layer(axum::middleware::from_fn(check))
            .layer(Extension(filter));
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
        assert_eq!(*asked.lock(), ["token", "token", "configz", "proxy", "metrics"]);
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
                assert!(counted.fetch_add(1, SeqCst) < MAX_CONCURRENT_REVIEWS, "too many reviews at once");
                tokio::time::sleep(Duration::from_millis(1)).await;
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes().to_vec();
                let answer = good.request_text(http::Request::from_parts(parts, body)).await.expect("a review");
                counted.fetch_sub(1, SeqCst);
                (StatusCode::CREATED, [("content-type", "application/json")], answer)
            }
        });
        let filter = AuthFilter::new(Client::new(router, "default"), "n1", true);
        assert!(filter.authenticate("good").await.unwrap().is_some());
        let wrong = (0..3 * MAX_CACHE_ENTRIES).map(|n| {
            let filter = filter.clone();
            tokio::spawn(async move {
                matches!(filter.authenticate(&format!("wrong {n}")).await, Ok(None) | Err(AuthenticationError::Busy))
            })
        });
        for answer in wrong.collect::<Vec<_>>() {
            assert!(answer.await.unwrap());
        }
        let before = asked.lock().len();
        assert!(filter.authenticate("good").await.unwrap().is_some());
        assert_eq!(asked.lock().len(), before, "the good token is remembered");
    }

    #[tokio::test]
    async fn a_right_is_remembered_with_all_that_it_was_decided_by() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let filter = AuthFilter::new(api(Arc::clone(&asked)), "n1", true);
        let groups = vec!["readers".to_owned(), AUTHENTICATED.to_owned()];
        let user = |scope: &str| User {
            name: "reader".into(),
            uid: Some("7".into()),
            groups: groups.clone(),
            extra: Some([("scope".to_owned(), vec![scope.to_owned()])].into()),
        };
        for scope in ["a", "b", "a"] {
            assert!(filter.authorize(&user(scope), "get", "proxy").await.unwrap());
        }
        assert_eq!(asked.lock().len(), 2);
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
        let filter = AuthFilter::new(Client::new(yes, "default"), "n1", true);
        let router =
            axum::Router::new().fallback(|| async {}).layer(axum::middleware::from_fn(check)).layer(Extension(filter));
        let ask = async |origin: &str| {
            let admin = ClientIdentity {
                name: "admin".into(),
                groups: vec!["system:masters".into()],
                ..ClientIdentity::default()
            };
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
        let filter = AuthFilter::new(Client::new(router, "default"), "n1", true);
        let user = User::of(&ClientIdentity {
            name: "admin".into(),
            groups: vec!["system:masters".into()],
            ..ClientIdentity::default()
        });
        assert!(!filter.authorize(&user, "create", "proxy").await.unwrap());
    }
}
