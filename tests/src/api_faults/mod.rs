//! What can go wrong between a client and its API server: a service in front of the real router that fails one request, or
//! one event of a watch, in one way. Requests and events are numbered, so that a test can let each of them fail.
//!
//! Time is tokio's, which may be paused: while the server works on a request, it does not jump.

mod fault;
mod fault_loop;
#[cfg(test)]
mod tests;
mod watch_events;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    response::Response,
};
use futures::{future::BoxFuture, stream};
use http::{Method, Request, header};
use kube::client::Body as ClientBody;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::watch;
use tower::{BoxError, Service, ServiceExt as _};

pub use fault::{Calls, EventFault, Fault, Purpose, RequestFault};
pub use fault_loop::with_each_fault;
use watch_events::watched;

/// The annotation that others write.
pub const TOUCHED: &str = "test.example/touched";

/// A path, by its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ResourcePath {
    plural: String,
    name: String,
    subresource: String,
}

impl ResourcePath {
    /// `None` for what is no path of a resource, such as discovery.
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let rest = match *parts.first()? {
            "api" => parts.get(2..)?,
            "apis" => parts.get(3..)?,
            _ => return None,
        };
        // `namespaces/x/status` is no collection of a namespace.
        let rest = match rest {
            ["namespaces", _, sub, ..] if ["status", "finalize"].contains(sub) => rest,
            ["namespaces", _, _, ..] => &rest[2..],
            rest => rest,
        };
        let part = |at: usize| rest.get(at).map(|part| (*part).to_owned());
        Some(Self { plural: part(0)?, name: part(1).unwrap_or_default(), subresource: part(2).unwrap_or_default() })
    }

    /// The plural, and the subresource after it.
    fn kind(&self) -> String {
        format!("{}{}", self.plural, self.subresource)
    }
}

fn is_watch(request: &Request<ClientBody>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|pair| ["watch=true", "watch=1"].contains(&pair)))
}

fn purpose(request: &Request<ClientBody>) -> Purpose {
    match *request.method() {
        Method::GET if is_watch(request) => Purpose::Watch,
        Method::GET => match ResourcePath::parse(request.uri().path()) {
            Some(path) if path.name.is_empty() => Purpose::List,
            _ => Purpose::Get,
        },
        Method::POST => Purpose::Create,
        _ => Purpose::Write,
    }
}

#[derive(Debug, Default)]
struct State {
    calls: Calls,
    /// What is to fail.
    fault: Option<Fault>,
    /// Requests by method and plural with subresource, all of them.
    requests: HashMap<(Method, String), usize>,
    /// Creations that are refused, by plural.
    refused: HashMap<String, String>,
    /// Answers that this server does not give, such as those of metrics APIs, by path: code, content type and body.
    answers: HashMap<String, (u16, String, String)>,
    /// Paths and queries of the requests that had those answers.
    asked: BTreeSet<String>,
    /// The next requests of a method and plural with subresource that fail: how, and how many.
    next: Vec<(Method, String, RequestFault, usize)>,
    /// Annotations that were written by others, by path.
    touched: BTreeMap<String, usize>,
}

/// The faults to inject; clones share them.
#[derive(Debug, Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    /// The plurals whose watches are on hold.
    held: watch::Sender<HashSet<String>>,
    /// How often the clients have ended.
    ends: watch::Sender<usize>,
    /// How many requests the server works on.
    in_flight: watch::Sender<usize>,
    /// The number of that life of theirs in which they ask by this one.
    life: usize,
}

impl Default for Faults {
    fn default() -> Self {
        let (held, ends) = (watch::Sender::new(HashSet::new()), watch::Sender::new(0));
        Self { state: Arc::default(), held, ends, in_flight: watch::Sender::new(0), life: 0 }
    }
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The same for those who start now.
    #[must_use]
    pub fn reborn(&self) -> Self {
        Self { life: *self.ends.borrow(), ..self.clone() }
    }

    /// Waits until this client has ended and the server has finished what it had taken of it: no process starts in less time
    /// than that. From then on none of its requests is carried out or answered.
    pub async fn ended(&self) {
        let _ = self.ends.subscribe().wait_for(|ends| *ends > self.life).await;
        let _ = self.in_flight.subscribe().wait_for(|in_flight| *in_flight == 0).await;
    }

    /// Answers by the server, which finishes what it has taken also if the client goes.
    async fn serve(&self, busy: Busy, router: Router, request: Request<ClientBody>) -> Response {
        let in_flight = InFlight::new(&self.in_flight);
        let serving = tokio::spawn(async move {
            let Ok(answer) = router.oneshot(request.map(Body::new)).await;
            drop((in_flight, busy));
            answer
        });
        serving.await.expect("a handler that does not panic")
    }

    fn has_ended(&self) -> bool {
        *self.ends.borrow() > self.life
    }

    fn end(&self) {
        self.ends.send_modify(|ends| *ends += 1);
    }

    /// Numbers requests and events from now on, of which this one fails, or none.
    pub fn arm(&self, fault: Option<Fault>) {
        let mut state = self.state();
        state.fault = fault;
        state.calls = Calls::default();
    }

    /// What there was since then.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.state().calls.clone()
    }

    /// How many requests and events there were since then.
    #[must_use]
    pub fn activity(&self) -> usize {
        let state = self.state();
        state.calls.made.len() + state.calls.events
    }

    /// How many requests there were of a method and a plural, with the subresource after it; no watches.
    #[must_use]
    pub fn requests(&self, method: &Method, plural: &str) -> usize {
        self.state().requests.get(&(method.clone(), plural.to_owned())).copied().unwrap_or(0)
    }

    /// Refuses creations, as a quota does, or no longer.
    pub fn refuse(&self, plural: &str, why: Option<&str>) {
        let mut state = self.state();
        match why {
            Some(why) => drop(state.refused.insert(plural.to_owned(), why.to_owned())),
            None => drop(state.refused.remove(plural)),
        }
    }

    /// The next `times` requests of this kind fail, of which the name is the plural with the subresource after it.
    pub fn fail(&self, method: Method, kind: &str, fault: RequestFault, times: usize) {
        self.state().next.push((method, kind.to_owned(), fault, times));
    }

    /// Answers requests for `path` in place of the server, or no longer.
    pub fn answer(&self, path: &str, answer: Option<(u16, &str, &str)>) {
        let mut state = self.state();
        match answer {
            Some((code, content_type, body)) => {
                drop(state.answers.insert(path.to_owned(), (code, content_type.to_owned(), body.to_owned())));
            }
            None => drop(state.answers.remove(path)),
        }
    }

    /// Paths and queries of the requests that had such answers, each once.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.state().asked.iter().cloned().collect()
    }

    /// Holds or releases watches of this type, to make a cache lag behind the API.
    pub fn hold(&self, plural: &str, is_held: bool) {
        self.held.send_modify(|held| {
            if is_held {
                held.insert(plural.to_owned());
            } else {
                held.remove(plural);
            }
        });
    }

    /// How a request fails. Events may be lost, so that their requests are not numbered.
    fn of_request(&self, request: &Request<ClientBody>) -> Option<RequestFault> {
        let (method, path) = (request.method(), request.uri().path());
        let kind = ResourcePath::parse(path).map(|path| path.kind()).unwrap_or_default();
        let mut state = self.state();
        if !is_watch(request) {
            *state.requests.entry((method.clone(), kind.clone())).or_default() += 1;
        }
        if kind != "events" {
            let number = state.calls.made.len();
            state.calls.made.push(purpose(request));
            if let Some(Fault::Request(of, fault)) = state.fault
                && of == number
            {
                state.calls.hit = Some(format!("{method} {}", request.uri()));
                return Some(fault);
            }
        }
        let next = state.next.iter_mut().find(|next| next.0 == *method && next.1 == kind && next.3 > 0)?;
        next.3 -= 1;
        Some(next.2)
    }

    /// How a watch fails at its next event.
    fn of_event(&self, line: &[u8]) -> Option<EventFault> {
        let mut state = self.state();
        let number = state.calls.events;
        state.calls.events += 1;
        let Some(Fault::Event(of, fault)) = state.fault else { return None };
        (of == number).then(|| {
            state.calls.hit = Some(String::from_utf8_lossy(line).chars().take(300).collect());
            fault
        })
    }

    /// An answer in place of the server's.
    fn canned(&self, request: &Request<ClientBody>) -> Option<Response> {
        let path = ResourcePath::parse(request.uri().path());
        let mut state = self.state();
        if let Some((code, content_type, body)) = state.answers.get(request.uri().path()).cloned() {
            state.asked.insert(request.uri().to_string());
            let answer = Response::builder().status(code).header(header::CONTENT_TYPE, content_type);
            return Some(answer.body(Body::from(body)).expect("an answer"));
        }
        let plural = path.filter(|path| *request.method() == Method::POST && path.name.is_empty())?.plural;
        let why = state.refused.get(&plural)?;
        Some(status(403, "Forbidden", why, None))
    }

    /// Waits until watches of this type are released.
    async fn released(&self, plural: &str) {
        let _ = self.held.subscribe().wait_for(|held| !held.contains(plural)).await;
    }

    /// Another one writes the object of a request.
    async fn touch(&self, router: &Router, path: &str) {
        let mut parts: Vec<&str> = path.split('/').collect();
        if ResourcePath::parse(path).is_some_and(|path| !path.subresource.is_empty()) {
            parts.pop();
        }
        let path = parts.join("/");
        let number = {
            let mut state = self.state();
            let number = state.touched.entry(path.clone()).or_default();
            *number += 1;
            *number
        };
        let patch = json!({"metadata": {"annotations": {TOUCHED: number.to_string()}}});
        let request = Request::patch(path).header(header::CONTENT_TYPE, "application/merge-patch+json");
        let _ = router.clone().oneshot(request.body(Body::from(patch.to_string())).expect("a request")).await;
    }

    /// `None` if the client has ended.
    async fn carry_out(
        &self,
        busy: Busy,
        router: Router,
        request: Request<ClientBody>,
    ) -> Option<Result<Response, BoxError>> {
        if self.has_ended() {
            return None;
        }
        let fault = self.of_request(&request);
        if fault == Some(RequestFault::EndsBefore) {
            self.end();
            return None;
        }
        let answer = self.answer_with(fault, busy, router, request).await;
        if fault == Some(RequestFault::EndsAfter) {
            self.end();
        }
        (!self.has_ended()).then_some(answer)
    }

    async fn answer_with(
        &self,
        fault: Option<RequestFault>,
        busy: Busy,
        router: Router,
        request: Request<ClientBody>,
    ) -> Result<Response, BoxError> {
        match fault {
            Some(RequestFault::NotConnected) => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Some(RequestFault::InternalError) => return Ok(status(500, "InternalError", "a test wants it so", None)),
            Some(RequestFault::Unavailable) => {
                return Ok(status(503, "ServiceUnavailable", "a test wants it so", None));
            }
            Some(RequestFault::TooManyRequests) => {
                return Ok(status(429, "TooManyRequests", "the server has received too many requests", Some(1)));
            }
            Some(RequestFault::Expired) => return Ok(status(410, "Expired", "too old resource version: 1 (2)", None)),
            Some(RequestFault::TooLargeVersion) => return Ok(too_large_version()),
            Some(RequestFault::ComesSecond) => self.touch(&router, request.uri().path()).await,
            Some(
                RequestFault::AnswerLost
                | RequestFault::TimedOut
                | RequestFault::BodyCut
                | RequestFault::EndsBefore
                | RequestFault::EndsAfter,
            )
            | None => {}
        }
        if let Some(answer) = self.canned(&request) {
            return Ok(answer);
        }
        let plural = ResourcePath::parse(request.uri().path()).map(|path| path.plural).unwrap_or_default();
        let is_watch = is_watch(&request);
        let answer = self.serve(busy, router, request).await;
        match fault {
            Some(RequestFault::AnswerLost) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Some(RequestFault::TimedOut) => {
                let why = "Timeout: request did not complete within requested timeout - context deadline exceeded";
                Ok(status(504, "Timeout", why, None))
            }
            Some(RequestFault::BodyCut) => cut(answer).await,
            _ if is_watch && answer.status().is_success() => Ok(watched(self.clone(), plural, answer)),
            _ => Ok(answer),
        }
    }
}

/// One more request that a server works on, until it is dropped.
#[derive(Debug)]
struct InFlight(watch::Sender<usize>);

impl InFlight {
    fn new(all: &watch::Sender<usize>) -> Self {
        all.send_modify(|all| *all += 1);
        Self(all.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|all| *all -= 1);
    }
}

/// A refusal as the API server writes it.
fn status(code: u16, reason: &str, message: &str, retry_after: Option<u32>) -> Response {
    let mut body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": message});
    let mut answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        answer = answer.header(header::RETRY_AFTER, seconds);
        body["details"] = json!({"retryAfterSeconds": seconds});
    }
    answer.body(Body::from(body.to_string())).expect("an answer")
}

fn too_large_version() -> Response {
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 504,
        "reason": "Timeout", "message": "Timeout: Too large resource version: 9, current: 8",
        "details": {"causes": [cause], "retryAfterSeconds": 1}});
    let answer = Response::builder().status(504).header(header::CONTENT_TYPE, "application/json");
    answer.body(Body::from(body.to_string())).expect("an answer")
}

/// The first half of an answer, and then the end of the connection.
async fn cut(answer: Response) -> Result<Response, BoxError> {
    let (parts, body) = answer.into_parts();
    let bytes = to_bytes(body, usize::MAX).await?;
    let pieces = [Ok(bytes.slice(..bytes.len() / 2)), Err(io::Error::from(io::ErrorKind::UnexpectedEof))];
    let (mut parts, body) = (parts, Body::from_stream(stream::iter(pieces)));
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, body))
}

/// The way to a router, as a client's service.
#[derive(Debug, Clone)]
pub struct Way {
    /// Where it leads.
    pub router: Router,
    /// `None` to inject no faults.
    pub faults: Option<Faults>,
}

impl Service<Request<ClientBody>> for Way {
    type Response = Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (busy, router, faults) = (Busy::new(), self.router.clone(), self.faults.clone());
        Box::pin(async move {
            let answer = match faults {
                Some(faults) => faults.carry_out(busy, router, request).await,
                None => {
                    let Ok(answer) = router.oneshot(request.map(Body::new)).await;
                    drop(busy);
                    Some(Ok(answer))
                }
            };
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }
}

/// How long a request may keep a paused clock where it is: the server itself may wait for a while, such as for the service
/// account of a new pod, which a controller makes whose next try is due later.
const BUSY_AT_MOST: Duration = Duration::from_secs(2);

/// That the server works: a clock that is paused does not jump meanwhile, since the store's own thread is no task of it.
#[derive(Debug)]
struct Busy(#[allow(dead_code, reason = "its end is heard")] mpsc::Sender<()>);

impl Busy {
    fn new() -> Self {
        let (held, heard) = mpsc::channel();
        drop(tokio::task::spawn_blocking(move || heard.recv_timeout(BUSY_AT_MOST)));
        Self(held)
    }
}
