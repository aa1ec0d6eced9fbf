//! Audit: what is recorded of requests, and how much of each. A sink says how much, by the rules that it has.
//!
//! Upstream: `k8s.io/apiserver/pkg/audit`.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, Uri, header},
    response::Response,
};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use windlass_kit::serve::{LongRunning, headers};

use super::attributes::Attributes;
use super::{body_guard::holding, error::ApiError, user::User};
use crate::apiserver::generate::new_uid;

/// The header by which a client may choose the id of its request, and by which it learns it.
pub(in crate::apiserver) const AUDIT_ID: &str = "audit-id";
/// The longest id that a client may choose.
const MAX_ID_LEN: usize = 64;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    /// Nothing.
    #[default]
    None,
    /// Who did what, when, and how it ended.
    Metadata,
    /// That and the body of the request.
    Request,
    /// That and the body of the response.
    RequestResponse,
}

/// When an event is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditStage {
    /// The request came.
    RequestReceived,
    /// The response of a request that lasts has begun.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The handler failed.
    Panic,
}

/// What a sink wants of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditRule {
    /// How much.
    pub level: AuditLevel,
    /// The stages without events.
    pub omit_stages: Vec<AuditStage>,
    /// Whether bodies are recorded without the owners of fields.
    pub omit_managed_fields: bool,
}

/// The object that a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectReference {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural name.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty.
    pub name: String,
    /// The uid that the client named, or empty.
    pub uid: String,
    /// The version of the object that the client named, or empty.
    pub resource_version: String,
}

/// What is recorded at one stage of a request.
#[derive(Debug, Clone)]
pub struct AuditEvent {
    /// How much is recorded.
    pub level: AuditLevel,
    /// Identifies the request.
    pub id: String,
    /// The stage.
    pub stage: AuditStage,
    /// Path and query.
    pub uri: String,
    /// The verb.
    pub verb: String,
    /// Who sent the request.
    pub user: User,
    /// Whom it was sent as, if that is another.
    pub impersonated: Option<User>,
    /// The addresses that it came from, the nearest last.
    pub source_ips: Vec<IpAddr>,
    /// What the client calls itself.
    pub user_agent: String,
    /// What it is about, if that is a resource.
    pub object: Option<ObjectReference>,
    /// The HTTP status of the response, when there is one.
    pub code: Option<u16>,
    /// The Status of a refusal.
    pub status: Option<Value>,
    /// The body of the request.
    pub request_object: Option<Arc<Value>>,
    /// The body of the response, in JSON.
    pub response_object: Option<Bytes>,
    /// Whether the owners of fields are left out of bodies.
    pub omit_managed_fields: bool,
    /// When the request came.
    pub received: Timestamp,
    /// When the stage was reached.
    pub at: Timestamp,
    /// What the stages of the request have noted.
    pub annotations: BTreeMap<String, String>,
}

/// Records requests.
pub trait AuditSink: Send + Sync + fmt::Debug {
    /// What it wants of a request of a user.
    fn rule(&self, user: &User, attributes: &Attributes<'_>) -> AuditRule;

    /// Records an event; may not block.
    fn record(&self, event: AuditEvent);
}

/// A request's metadata besides its target.
#[derive(Debug, Clone, Copy)]
pub(in crate::apiserver) struct Sent<'a> {
    pub(in crate::apiserver) uri: &'a Uri,
    pub(in crate::apiserver) headers: &'a HeaderMap,
    pub(in crate::apiserver) address: Option<IpAddr>,
}

/// The audit record of one request; `None` if the policy does not ask for one.
#[derive(Debug, Clone, Default)]
pub struct Audit(Option<Arc<Recording>>);

#[derive(Debug)]
struct Recording {
    sink: Arc<dyn AuditSink>,
    omit_stages: Vec<AuditStage>,
    event: Mutex<AuditEvent>,
}

impl Recording {
    fn event(&self) -> MutexGuard<'_, AuditEvent> {
        self.event.lock()
    }

    fn record(&self, stage: AuditStage) {
        let mut event = self.event();
        event.stage = stage;
        if self.omit_stages.contains(&stage) {
            return;
        }
        event.at = Timestamp::now();
        self.sink.record(event.clone());
    }
}

/// The id of a request: the client's if it has one, else a new one.
pub(in crate::apiserver) fn id_of(headers: &HeaderMap) -> String {
    let given = headers::shown(headers, AUDIT_ID);
    if given.is_empty() || given.len() > MAX_ID_LEN { new_uid().unwrap_or_default() } else { given.into_owned() }
}

/// Sends the client its request's audit id.
pub(in crate::apiserver) fn name_in(response: &mut Response, id: &str) {
    if let Ok(id) = HeaderValue::from_bytes(id.as_bytes()) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
}

impl Audit {
    /// Begins to record a request, as far as the sink wants it.
    pub(in crate::apiserver) fn begin(
        sink: Option<&Arc<dyn AuditSink>>,
        id: &str,
        user: &User,
        attributes: &Attributes<'_>,
        sent: Sent<'_>,
    ) -> Self {
        let Some(sink) = sink else { return Self(None) };
        let rule = sink.rule(user, attributes);
        if rule.level == AuditLevel::None {
            return Self(None);
        }
        let now = Timestamp::now();
        let event = AuditEvent {
            level: rule.level,
            id: id.to_owned(),
            stage: AuditStage::RequestReceived,
            uri: sent.uri.path_and_query().map_or_else(|| attributes.path.to_owned(), ToString::to_string),
            verb: attributes.verb.to_owned(),
            user: user.clone(),
            impersonated: None,
            source_ips: source_ips(sent.headers, sent.address),
            user_agent: headers::shown(sent.headers, header::USER_AGENT.as_str()).into_owned(),
            object: attributes.is_resource.then(|| reference(attributes)),
            code: None,
            status: None,
            request_object: None,
            response_object: None,
            omit_managed_fields: rule.omit_managed_fields,
            received: now,
            at: now,
            annotations: BTreeMap::new(),
        };
        let recording = Recording { sink: Arc::clone(sink), omit_stages: rule.omit_stages, event: Mutex::new(event) };
        recording.record(AuditStage::RequestReceived);
        Self(Some(Arc::new(recording)))
    }

    fn update(&self, change: impl FnOnce(&mut AuditEvent)) {
        if let Some(recording) = &self.0 {
            change(&mut recording.event());
        }
    }

    /// Adds an annotation, unless the key has one already.
    pub(crate) fn annotate(&self, key: &str, value: impl Into<String>) {
        self.annotate_with(key, || value.into());
    }

    /// Adds a note that is made only if it is recorded.
    pub(crate) fn annotate_with(&self, key: &str, value: impl FnOnce() -> String) {
        self.annotate_at(AuditLevel::Metadata, key, value);
    }

    /// Adds a note that is made only if at least so much is recorded.
    pub(crate) fn annotate_at(&self, level: AuditLevel, key: &str, value: impl FnOnce() -> String) {
        self.update(|event| {
            if event.level < level {
                return;
            }
            event.annotations.entry(key.to_owned()).or_insert_with(value);
        });
    }

    pub(in crate::apiserver) fn impersonates(&self, user: &User) {
        self.update(|event| event.impersonated = Some(user.clone()));
    }

    /// Records the decoded body of the request, and what it says of the object where the path does not.
    pub(in crate::apiserver) fn request_object(&self, body: &Value) {
        self.update(|event| {
            if let Some(object) = &mut event.object {
                let metadata = &body["metadata"];
                for (field, known) in [
                    ("namespace", &mut object.namespace),
                    ("name", &mut object.name),
                    ("uid", &mut object.uid),
                    ("resourceVersion", &mut object.resource_version),
                ] {
                    if known.is_empty() {
                        metadata[field].as_str().unwrap_or("").clone_into(known);
                    }
                }
            }
            if event.level >= AuditLevel::Request {
                event.request_object = Some(Arc::new(body.clone()));
            }
        });
    }

    /// Records a body that is no object: a patch, or options.
    pub(in crate::apiserver) fn request_body(&self, body: &Value) {
        self.update(|event| {
            if event.level >= AuditLevel::Request {
                event.request_object = Some(Arc::new(body.clone()));
            }
        });
    }

    /// Whether the body of the response is wanted.
    pub(in crate::apiserver) fn wants_response(&self) -> bool {
        self.0.as_ref().is_some_and(|recording| recording.event().level == AuditLevel::RequestResponse)
    }

    /// Records a refusal.
    pub(in crate::apiserver) fn refused(&self, error: &ApiError) {
        self.update(|event| {
            if event.stage != AuditStage::Panic {
                event.status = Some(error.status());
            }
        });
    }

    /// Records that the handler failed, which ends the record.
    pub(in crate::apiserver) fn panicked(&self, error: &ApiError, why: &str) {
        let Some(recording) = &self.0 else { return };
        {
            let mut event = recording.event();
            event.code = Some(error.code);
            let mut status = error.status();
            status["message"] = format!("APIServer panic'd: {why}").into();
            event.status = Some(status);
        }
        recording.record(AuditStage::Panic);
    }

    /// Records how the request ended, or that its response begins if that lasts.
    pub(in crate::apiserver) fn answered(self, response: Response) -> Response {
        let Some(recording) = self.0 else { return response };
        {
            let mut event = recording.event();
            if event.stage == AuditStage::Panic {
                return response;
            }
            event.code = Some(response.status().as_u16());
            if event.level == AuditLevel::RequestResponse {
                event.response_object = response.extensions().get::<Answered>().map(|body| body.0.clone());
            }
        }
        if response.extensions().get::<LongRunning>().is_none() {
            recording.record(AuditStage::ResponseComplete);
            return response;
        }
        recording.record(AuditStage::ResponseStarted);
        holding(response, Lasting(recording))
    }

    /// Records a request of an unauthenticated caller, as upstream does: when the response begins.
    pub(in crate::apiserver) fn unauthenticated(self, response: &Response) {
        if let Some(recording) = self.0 {
            recording.event().code = Some(response.status().as_u16());
            recording.record(AuditStage::ResponseStarted);
        }
    }
}

/// Extension of responses whose body is recorded: the body in JSON, whatever encoding the client gets.
#[derive(Debug, Clone)]
pub(in crate::apiserver) struct Answered(pub(in crate::apiserver) Bytes);

/// A response that lasts, until it is dropped.
struct Lasting(Arc<Recording>);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.record(AuditStage::ResponseComplete);
    }
}

fn reference(about: &Attributes<'_>) -> ObjectReference {
    ObjectReference {
        group: about.group.to_owned(),
        version: about.version.to_owned(),
        resource: about.resource.to_owned(),
        subresource: about.subresource.to_owned(),
        namespace: about.namespace.to_owned(),
        name: about.name.to_owned(),
        ..ObjectReference::default()
    }
}

/// Where a request comes from: what proxies say of it, and the connection's other end. Pure.
fn source_ips(headers: &HeaderMap, address: Option<IpAddr>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> =
        headers::items(headers, "x-forwarded-for").filter_map(|part| part.parse().ok()).collect();
    if ips.is_empty() {
        ips.extend(headers::shown(headers, "x-real-ip").trim().parse::<IpAddr>());
    }
    ips.extend(address.filter(|address| ips.last() != Some(address)));
    ips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_from_its_connection_and_what_proxies_say() {
        let near = "10.0.0.1".parse().unwrap();
        for (name, value, expected) in [
            ("x-other", "1.2.3.4", "10.0.0.1"),
            ("x-forwarded-for", "1.2.3.4, nonsense, ::1", "1.2.3.4 ::1 10.0.0.1"),
            ("x-forwarded-for", "1.2.3.4, 10.0.0.1", "1.2.3.4 10.0.0.1"),
            ("x-real-ip", "1.2.3.4", "1.2.3.4 10.0.0.1"),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            let found: Vec<String> = source_ips(&headers, Some(near)).iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), expected, "{name}: {value}");
        }
    }

    #[test]
    fn a_client_may_choose_the_id_of_its_request() {
        let given = |id: String| id_of(&HeaderMap::from_iter([(AUDIT_ID.parse().unwrap(), id.parse().unwrap())]));
        assert_eq!(given("mine".to_owned()), "mine");
        assert_eq!(given("x".repeat(65)).len(), 36);
        assert_eq!(id_of(&HeaderMap::new()).len(), 36);
    }
}
