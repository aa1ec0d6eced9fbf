//! An extension API server for tests: HTTPS, with the group `ext.example`, whose answers a test can change, and which remembers
//! what it was asked.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::BodyExt as _;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Notify,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// The group that it serves.
pub(crate) const GROUP: &str = "ext.example";
/// Where its Service is, and its name in the namespace.
pub(crate) const NAMESPACE: &str = "ext";
pub(crate) const SERVICE: &str = "api";

/// What it does with requests for documents.
#[allow(dead_code, reason = "each test program needs some of them")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// It has documents of all groups.
    Whole,
    /// It has the lists of single group versions alone, and OpenAPI of version 2.
    Legacy,
    /// It refuses documents of all groups and OpenAPI.
    Forbid,
    /// It refuses everything.
    ForbidAll,
    /// It does not answer.
    Hang,
    /// Its documents never end.
    Flood,
}

/// What it was asked.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) uri: String,
    pub(crate) headers: BTreeMap<String, Vec<String>>,
}

impl Call {
    /// The values of a header.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get(name).into_iter().flatten().map(String::as_str).collect()
    }
}

/// The server, which ends with the runtime of the test.
#[derive(Clone)]
pub(crate) struct ExtensionServer {
    pub(crate) address: SocketAddr,
    /// The certificate of its authority, in PEM.
    pub(crate) ca: String,
    calls: Arc<Mutex<Vec<Call>>>,
    act: Arc<Mutex<Act>>,
    /// Lets a watch go on.
    pub(crate) next: Arc<Notify>,
    is_dead: Arc<AtomicBool>,
    death: Arc<Notify>,
}

impl ExtensionServer {
    /// Serves at an address of this machine.
    pub(crate) async fn start(address: &str) -> Self {
        let (authority, certificate, key) = certificates(&[&format!("{SERVICE}.{NAMESPACE}.svc")]);
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
            calls: Arc::default(),
            act: Arc::new(Mutex::new(Act::Whole)),
            next: Arc::default(),
            is_dead: Arc::default(),
            death: Arc::default(),
        };
        tokio::spawn(server.clone().accept(listener, TlsAcceptor::from(Arc::new(tls))));
        server
    }

    async fn accept(self, listener: TcpListener, acceptor: TlsAcceptor) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { return };
                    let (server, acceptor) = (self.clone(), acceptor.clone());
                    connections.spawn(async move {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let service = service_fn(|request: hyper::Request<_>| server.answer(request.map(Body::new)));
                        let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                        let _ = serving.with_upgrades().await;
                    });
                }
                () = self.death.notified() => return,
            }
        }
    }

    /// Closes the port and all connections.
    pub(crate) fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.death.notify_one();
    }

    /// Does this from now on.
    pub(crate) fn act(&self, act: Act) {
        *self.act.lock().expect("a lock") = act;
    }

    #[allow(dead_code, reason = "not every test program asks")]
    /// The calls since the last question, but for those by which it is watched.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let calls = std::mem::take(&mut *self.calls.lock().expect("a lock"));
        let own = |call: &Call| {
            let user = call.header("x-remote-user");
            user == ["system:kube-aggregator"] || user == ["system:aggregator"]
        };
        calls.into_iter().filter(|call| !own(call)).collect()
    }

    async fn answer(&self, request: Request) -> Result<Response, std::io::Error> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("dead"));
        }
        let mut headers = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in request.headers() {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            headers.entry(name.to_string()).or_default().push(value);
        }
        let call = Call { uri: request.uri().to_string(), headers };
        self.calls.lock().expect("a lock").push(call.clone());
        let act = *self.act.lock().expect("a lock");
        let server = self.clone();
        let router = Router::new().fallback(async move |request| server.route(act, request, call).await);
        let Ok(response) = router.oneshot(request).await;
        Ok(response)
    }

    async fn route(&self, act: Act, mut request: Request, call: Call) -> Response {
        let path = request.uri().path().to_owned();
        let is_document = path == "/apis" || path.starts_with("/openapi");
        let json = |body: Value| ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
        match act {
            Act::Hang => return std::future::pending().await,
            Act::ForbidAll => return StatusCode::FORBIDDEN.into_response(),
            Act::Forbid if is_document => return StatusCode::FORBIDDEN.into_response(),
            Act::Legacy if path.starts_with("/openapi/v3") => return StatusCode::NOT_FOUND.into_response(),
            Act::Legacy if path == "/apis" => return json(json!({"kind": "APIGroupList", "groups": []})),
            Act::Flood if is_document => return flood(),
            _ => {}
        }
        match path.trim_end_matches('/').split('/').skip(1).collect::<Vec<_>>()[..] {
            ["apis"] => {
                let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                if call.header("if-none-match") == ["\"1\""] {
                    return StatusCode::NOT_MODIFIED.into_response();
                }
                ([(header::CONTENT_TYPE, kind), (header::ETAG, "\"1\"")], discovery().to_string()).into_response()
            }
            ["apis", GROUP, version] => json(resources(version)),
            ["openapi", "v2"] => json(openapi_v2()),
            ["openapi", "v3"] => json(json!({"paths": {
                format!("apis/{GROUP}"): {"serverRelativeURL": format!("/openapi/v3/apis/{GROUP}?hash=0")},
                format!("apis/{GROUP}/v1"): {"serverRelativeURL": format!("/openapi/v3/apis/{GROUP}/v1?hash=1")},
                "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=bad"},
            }})),
            ["openapi", "v3", "apis", GROUP, "v1"] => json(json!({"openapi": "3.0.0", "paths": {}})),
            ["apis", GROUP, "v1", "namespaces", _, "things"] if call.uri.contains("watch=") => self.watch(),
            ["apis", GROUP, "v1", "namespaces", _, "things", "a", "exec"] => shout(&mut request),
            ["apis", GROUP, "v1", "namespaces", _, "things", "a", "stubborn"] => "no upgrade".into_response(),
            ["apis", GROUP, "v1", "namespaces", _, "things", "away"] => {
                (StatusCode::FOUND, [(header::LOCATION, "https://elsewhere.example/")]).into_response()
            }
            ["apis", GROUP, "v1", "namespaces", _, "things", "cut"] => {
                // What is begun is sent before it is cut off.
                let end = async {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    Err(std::io::Error::other("cut"))
                };
                let begun = futures::stream::iter([Ok(Bytes::from("begun"))]);
                Body::from_stream(futures::StreamExt::chain(begun, futures::stream::once(end))).into_response()
            }
            ["apis", GROUP, "v1", "namespaces", _, "things", "gone"] => StatusCode::GONE.into_response(),
            ["apis", GROUP, ..] => {
                let method = request.method().to_string();
                let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
                let body = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
                let echo = json!({"kind": "Thing", "apiVersion": format!("{GROUP}/v1"), "method": method, "uri": call.uri,
                    "headers": call.headers, "body": body});
                let mut response = json(echo);
                for (name, value) in [("connection", "x-hop"), ("x-hop", "1"), ("access-control-allow-origin", "*")] {
                    response.headers_mut().insert(name, value.parse().expect("a value"));
                }
                response
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }

    /// An event, and another one when the test wants it.
    fn watch(&self) -> Response {
        let next = Arc::clone(&self.next);
        let event = |name: &str| {
            let object = json!({"kind": "Thing", "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": name}});
            Bytes::from(format!("{}\n", json!({"type": "ADDED", "object": object})))
        };
        let events = futures::stream::unfold(0, move |sent| {
            let next = Arc::clone(&next);
            async move {
                if sent > 0 {
                    next.notified().await;
                }
                Some((Ok::<_, std::io::Error>(event(&format!("e{sent}"))), sent + 1))
            }
        });
        ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(events)).into_response()
    }

    /// The objects by which it is found: the Service, its EndpointSlice and the APIService of a version.
    pub(crate) fn service() -> Value {
        json!({"metadata": {"name": SERVICE, "namespace": NAMESPACE}, "spec": {"ports": [{"name": "https", "port": 443}]}})
    }

    pub(crate) fn slice(&self) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "api-1", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address.ip().to_string()], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": self.address.port(), "protocol": "TCP"}],
        })
    }

    /// The certificate as APIServices have it.
    pub(crate) fn ca_bundle(&self) -> String {
        STANDARD.encode(&self.ca)
    }

    pub(crate) fn api_service(&self, group: &str, version: &str, priorities: (i64, i64)) -> Value {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": priorities.0,
                "versionPriority": priorities.1, "caBundle": self.ca_bundle(),
                "service": {"namespace": NAMESPACE, "name": SERVICE, "port": 443}},
        })
    }
}

fn flood() -> Response {
    let piece = Bytes::from(" ".repeat(64 << 10));
    let endless = futures::stream::unfold(piece, |piece| async move {
        tokio::time::sleep(Duration::from_micros(50)).await;
        Some((Ok::<_, std::io::Error>(piece.clone()), piece))
    });
    let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(endless)).into_response()
}

/// Upgrades and answers in capital letters.
fn shout(request: &mut Request) -> Response {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let mut bytes = [0; 5];
        if stream.read_exact(&mut bytes).await.is_ok() {
            let _ = stream.write_all(&bytes.to_ascii_uppercase()).await;
        }
    });
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "Upgrade"), ("upgrade", "shouting")]).into_response()
}

fn discovery() -> Value {
    let kind = |version: &str| json!({"group": GROUP, "version": version, "kind": "Thing"});
    let version = |version: &str| {
        json!({"version": version, "freshness": "Current", "resources": [{
            "resource": "things", "responseKind": kind(version), "scope": "Namespaced", "singularResource": "thing",
            "verbs": ["create", "get", "list", "watch"], "shortNames": ["th"],
            "subresources": [{"subresource": "status", "responseKind": kind(version), "verbs": ["get"]}],
        }]})
    };
    let versions = [version("v1"), version("v1alpha1")];
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{"metadata": {"name": GROUP, "creationTimestamp": null}, "versions": versions}]})
}

fn resources(version: &str) -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"), "resources": [
        {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "shortNames": ["th"],
            "verbs": ["create", "get", "list", "watch"]},
        {"name": "things/status", "singularName": "", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
    ]})
}

fn openapi_v2() -> Value {
    let reference = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
    let path = |name: &str| json!({"get": {"responses": {"200": {"description": "OK", "schema": reference(name)}}}});
    json!({
        "swagger": "2.0", "info": {"title": "ext", "version": "v1"},
        "paths": {format!("/apis/{GROUP}/v1/things"): path("example.ext.v1.Thing"), "/apis/other/v1/x": path("other")},
        "definitions": {
            "example.ext.v1.Thing": {"type": "object", "properties": {"metadata": reference("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")},
                "x-kubernetes-group-version-kind": [{"group": GROUP, "version": "v1", "kind": "Thing"}]},
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object", "description": "another one"},
            "other": {"type": "object"},
        },
    })
}

fn certificates(names: &[&str]) -> (rcgen::Certificate, rcgen::Certificate, rcgen::KeyPair) {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "extension-ca");
    let signed = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let leaf = rcgen::CertificateParams::new(names).expect("names").signed_by(&key, &issuer).expect("a certificate");
    (signed, leaf, key)
}
