//! What is recorded of requests.

use parking_lot::Mutex;

use super::*;
use crate::{apiserver::request::audit::Audit, store::Memory};

/// Records all at one level.
#[derive(Debug)]
struct Recorder {
    rule: AuditRule,
    events: Mutex<Vec<AuditEvent>>,
}

impl AuditSink for Recorder {
    fn rule(&self, _: &User, _: &Attributes<'_>) -> AuditRule {
        self.rule.clone()
    }

    fn record(&self, event: AuditEvent) {
        self.events.lock().push(event);
    }
}

impl Recorder {
    fn take(&self) -> Vec<AuditEvent> {
        std::mem::take(&mut self.events.lock())
    }
}

async fn recorded(level: AuditLevel) -> (Api, Arc<Recorder>) {
    let omit_stages = vec![AuditStage::RequestReceived];
    let rule = AuditRule { level, omit_stages, omit_managed_fields: false };
    let recorder = Arc::new(Recorder { rule, events: Mutex::default() });
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let api = Api::new(&store, &ApiConfig { audit: Some(Arc::clone(&recorder) as _), ..config() }, None, None);
    let namespace = json!({"metadata": {"name": "n", "labels": {"pod-security.kubernetes.io/audit": "baseline"}}});
    call(&api, "POST", "/api/v1/namespaces", namespace).await;
    recorder.take();
    (api, recorder)
}

#[tokio::test]
async fn bodies_are_recorded_at_their_levels_only() {
    for (level, request, response) in [
        (AuditLevel::None, false, false),
        (AuditLevel::Metadata, false, false),
        (AuditLevel::Request, true, false),
        (AuditLevel::RequestResponse, true, true),
    ] {
        let (api, recorder) = recorded(level).await;
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
        let path = "/api/v1/namespaces/n/secrets";
        let protobuf = "application/vnd.kubernetes.protobuf";
        let user = User::internal("t");
        assert_eq!(send(&api, &user, "POST", path, "application/json", protobuf, &secret.to_string()).await.code, 201);
        let events = recorder.take();
        let [event] = events.as_slice() else {
            assert!(level == AuditLevel::None && events.is_empty(), "{events:?}");
            continue;
        };
        assert_eq!((event.level, event.stage, event.code), (level, AuditStage::ResponseComplete, Some(201)));
        let object = event.object.as_ref().unwrap();
        assert_eq!((object.resource.as_str(), object.name.as_str()), ("secrets", "s"));
        assert_eq!(event.annotations["authorization.k8s.io/decision"], "allow");
        assert_eq!(event.request_object.as_ref().map(|o| o["stringData"]["a"] == "b"), request.then_some(true));
        // In JSON, whatever the client got.
        let answered: Option<Value> = event.response_object.as_ref().map(|o| serde_json::from_slice(o).unwrap());
        assert_eq!(answered.map(|o| o["data"]["a"].clone()), response.then_some(json!("Yg==")));
    }
}

#[tokio::test]
async fn refusals_are_recorded_with_their_reason() {
    let (api, recorder) = recorded(AuditLevel::Metadata).await;
    let eve = User { name: "eve".to_owned(), ..User::default() };
    assert_eq!(send(&api, &eve, "GET", PODS, "", "*/*", "").await.code, 403);
    let [event] = &recorder.take()[..] else { panic!("one event") };
    assert_eq!((event.code, &event.status.as_ref().unwrap()["reason"]), (Some(403), &json!("Forbidden")));
    assert_eq!(event.annotations["authorization.k8s.io/decision"], "forbid");
    // A request with an unknown token.
    let request = Request::get(PODS).header("authorization", "Bearer x").header("audit-id", "mine");
    let response = api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["audit-id"]),
        (StatusCode::UNAUTHORIZED, &"mine".parse().unwrap())
    );
    let [event] = &recorder.take()[..] else { panic!("one event") };
    assert_eq!((event.code, event.stage, event.id.as_str()), (Some(401), AuditStage::ResponseStarted, "mine"));
    assert!(event.user.name.is_empty());
}

#[tokio::test]
async fn a_watch_is_recorded_when_it_begins_and_when_it_ends() {
    let (api, recorder) = recorded(AuditLevel::Metadata).await;
    let request = Request::get(format!("{MAPS}?watch=true&timeoutSeconds=600")).extension(User::internal("t"));
    let response = api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let stages = || recorder.take().into_iter().map(|event| event.stage).collect::<Vec<_>>();
    assert_eq!(stages(), [AuditStage::ResponseStarted]);
    drop(response);
    assert_eq!(stages(), [AuditStage::ResponseComplete]);
}

#[tokio::test]
async fn plugins_add_notes() {
    let (api, recorder) = recorded(AuditLevel::Metadata).await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]}});
    let made = call(&api, "POST", PODS, pod).await;
    assert_eq!((made.code, made.warnings.len()), (201, 0), "{}", made.body);
    let [event] = &recorder.take()[..] else { panic!("one event") };
    assert_eq!(event.annotations["pod-security.kubernetes.io/enforce-policy"], "privileged:latest");
    assert_eq!(
        event.annotations["pod-security.kubernetes.io/audit-violations"],
        "would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
    // Without a sink a note is dropped.
    Audit::default().annotate("k", "v");
}

#[tokio::test]
async fn health_as_a_whole_is_open_and_its_checks_are_not() {
    let api = api();
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        api.router().oneshot(request).await.unwrap().status().as_u16()
    };
    for (path, code) in [
        ("/livez", 200),
        ("/readyz?verbose", 200),
        ("/healthz", 200),
        ("/version", 200),
        ("/livez/ping", 401),
        ("/api", 401),
        ("/openapi/v2", 401),
        ("/.well-known/openid-configuration", 401),
        ("/metrics", 401),
    ] {
        // Access to the version is granted by roles, which do not exist here.
        let code = if path == "/version" { 403 } else { code };
        assert_eq!(get(path).await, code, "{path}");
    }
    assert_eq!(call(&api, "GET", "/livez/ping", Value::Null).await.code, 200);
}

#[tokio::test]
async fn bodies_are_recorded_whoever_reads_them() {
    let (api, recorder) = recorded(AuditLevel::Request).await;
    let core = "/api/v1/namespaces/n";
    for (path, object) in [
        (format!("{core}/serviceaccounts"), json!({"metadata": {"name": "default"}})),
        (format!("{core}/pods"), pod("p")),
        (
            format!("{core}/replicationcontrollers"),
            json!({"metadata": {"name": "r"}, "spec": {"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]}}}),
        ),
        ("/api/v1/nodes".to_owned(), json!({"metadata": {"name": "x"}})),
    ] {
        let made = call(&api, "POST", &path, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    recorder.take();
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "x"}});
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    let sized = json!({"spec": {"replicas": 2}});
    let internal = "meta.k8s.io/__internal";
    let rows = [
        ("POST", "/pods/p/binding", binding.clone(), binding.clone()),
        (
            "POST",
            "/pods/p/eviction?dryRun=All",
            json!({"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 3}}),
            json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 3}}),
        ),
        (
            "POST",
            "/serviceaccounts/default/token",
            json!({"spec": {"expirationSeconds": 600}}),
            json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 600}}),
        ),
        ("PATCH", "/replicationcontrollers/r/scale", sized.clone(), sized),
        ("PATCH", "/pods/p/ephemeralcontainers", debug.clone(), debug),
        (
            "DELETE",
            "/pods/p?dryRun=All",
            json!({"gracePeriodSeconds": 0}),
            json!({"kind": "DeleteOptions", "apiVersion": internal, "gracePeriodSeconds": 0}),
        ),
        (
            "DELETE",
            "/configmaps",
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}),
            json!({"kind": "DeleteOptions", "apiVersion": internal, "propagationPolicy": "Background"}),
        ),
        ("DELETE", "/pods/p?dryRun=All", Value::Null, Value::Null),
    ];
    for (method, path, body, wanted) in rows {
        call(&api, method, &format!("{core}{path}"), body).await;
        let events = recorder.take();
        let found = events.last().unwrap().request_object.as_deref().cloned().unwrap_or_default();
        assert_eq!(found, wanted, "{method} {path}");
    }
    let review = json!({"spec": {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    call(&api, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review.clone()).await;
    let recorded = recorder.take().last().unwrap().request_object.as_deref().cloned().unwrap_or_default();
    assert_eq!(recorded["spec"], review["spec"]);
}
