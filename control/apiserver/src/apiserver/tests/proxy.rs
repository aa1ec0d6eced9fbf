//! `proxy` subresources: a node of this process is the backend, so that requests pass the whole way.

use axum::{
    Router,
    extract::{OriginalUri, Request as AnyRequest},
    response::{IntoResponse as _, Response},
    routing::any,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{ClientIdentity, in_process, serve_in_process};

use super::*;

const PAGE: &str = "<!doctype html><a href=\"/rewriteme\">test</a><a href=\"rel\"><script src='/s.js'></script>";

/// Answers with what it was asked.
async fn echo(OriginalUri(uri): OriginalUri, request: AnyRequest) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let headers: serde_json::Map<String, Value> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let answer = json!({"method": parts.method.as_str(), "uri": uri.to_string(), "headers": headers,
        "body": String::from_utf8_lossy(&body)});
    ([("connection", "x-hop"), ("x-hop", "1"), ("access-control-allow-origin", "*")], answer.to_string())
        .into_response()
}

/// Upgrades and answers in capital letters.
async fn shout(mut request: AnyRequest) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes.to_ascii_uppercase()).await.unwrap();
    });
    let headers =
        [("connection", "Upgrade"), ("upgrade", "shouting"), ("x-query", request.uri().query().unwrap_or(""))];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// An API whose node `n` is served by a router.
async fn bed() -> Api {
    let router = Router::new()
        .route("/page", any(async || ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE)))
        .route("/plain", any(async || PAGE))
        .route("/away", any(async || (StatusCode::FOUND, [(header::LOCATION, "/there?q=1")])))
        .route("/odd", any(async || (StatusCode::FOUND, [(header::LOCATION, ":odd")])))
        .route("/shout", any(shout))
        .fallback(echo);
    let (connector, listener) = in_process(ClientIdentity { name: "api".into(), ..ClientIdentity::default() });
    tokio::spawn(serve_in_process("a node", listener, router, CancellationToken::new()));
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let kubelet = KubeletClient::new(tls);
    kubelet.set_in_process_node("n".into(), connector);
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let api = Api::new(&store, &config(), Some(kubelet), None);
    let node = json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }});
    for (path, object) in [
        ("/api/v1/nodes", node),
        ("/api/v1/namespaces", json!({"metadata": {"name": "n"}})),
        (PODS, pod("p")),
        (SERVICES, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "name": "web"}]}})),
    ] {
        let made = call(&api, "POST", path, object).await;
        assert_eq!(made.code, 201, "{path}: {}", made.body);
    }
    api
}

async fn ask(api: &Api, request: http::request::Builder, body: &str) -> (http::response::Parts, String) {
    let request = request.extension(User::internal("test")).body(Body::from(body.to_owned())).unwrap();
    let (parts, body) = api.router().oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn every_method_and_path_is_passed_on() {
    let api = bed().await;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let request = Request::builder()
            .method(method)
            .uri("/api/v1/nodes/n/proxy/a%20b/c?limit=x&watch=true&dryRun=y")
            .header("host", "api.example")
            .header("x-remote-user", "root")
            .header("cookie", "a=b")
            .header("content-type", "nonsense");
        let (parts, body) = ask(&api, request, "hello").await;
        assert_eq!(parts.status, 200, "{method}: {body}");
        assert!(!parts.headers.contains_key("x-hop") && !parts.headers.contains_key("access-control-allow-origin"));
        let asked: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&asked["method"], &asked["body"]), (&json!(method), &json!("hello")));
        assert_eq!(asked["uri"], "/a%20b/c?limit=x&watch=true&dryRun=y");
        let headers = &asked["headers"];
        assert_eq!((&headers["host"], &headers["cookie"]), (&json!("api.example"), &json!("a=b")));
        assert_eq!(headers["x-forwarded-uri"], "/api/v1/nodes/n/proxy/a%20b/c");
        assert!(headers["x-remote-user"].is_null() && headers["authorization"].is_null());
    }
    let (_, body) = ask(&api, Request::builder().method("POST").uri("/api/v1/nodes/n/proxy"), "x").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["uri"], "/");
}

#[tokio::test]
async fn pages_and_redirects_lead_through_the_proxy() {
    let api = bed().await;
    let get = |path: &str| Request::builder().uri(format!("/api/v1/nodes/n:10250/proxy{path}"));
    for (path, location) in [
        ("", "/api/v1/nodes/n:10250/proxy/"),
        ("?q", "/api/v1/nodes/n:10250/proxy/?q"),
        ("/away", "/api/v1/nodes/n:10250/proxy/there?q=1"),
    ] {
        let (parts, _) = ask(&api, get(path), "").await;
        assert!(parts.status.is_redirection() && parts.headers["location"] == location, "{path}: {parts:?}");
    }
    let (parts, body) = ask(&api, get("/odd"), "").await;
    assert_eq!(parts.status, 500);
    assert!(
        body.contains("error trying to parse Location header: parse \\\":odd\\\": missing protocol scheme"),
        "{body}"
    );
    let page = PAGE.replace("\"/rewriteme\"", "\"/api/v1/nodes/n:10250/proxy/rewriteme\"");
    let page = page.replace("'/s.js'", "\"/api/v1/nodes/n:10250/proxy/s.js\"");
    let (parts, body) = ask(&api, get("/page"), "").await;
    assert_eq!(body, page);
    assert_ne!(
        parts.headers.get("content-length").map(|length| length.to_str().unwrap().to_owned()),
        Some(PAGE.len().to_string())
    );
    assert_eq!(ask(&api, get("/plain"), "").await.1, PAGE);
}

#[tokio::test]
async fn what_cannot_be_reached_is_refused_in_upstreams_words() {
    let api = bed().await;
    let own = json!({"status": {"podIPs": [{"ip": "127.0.0.1"}], "podIP": "127.0.0.1"}});
    let slice = json!({"metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
        "ports": [{"name": "web", "port": 80}],
        "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"],
            "targetRef": {"kind": "Pod", "namespace": "n", "name": "p"}}]});
    let of = |path: &str| format!("/api/v1/namespaces/n/{path}/proxy/");
    for (path, code, message) in [
        (of("pods/p"), 400, "address not allowed"),
        (of("pods/a:b:c:d"), 400, "invalid pod request \"a:b:c:d\""),
        (of("pods/ftp:p:1"), 400, "invalid pod request \"ftp:p:1\""),
        (of("pods/x"), 404, "pods \"x\" not found"),
        (of("services/a:b:c:d"), 400, "invalid service request \"a:b:c:d\""),
        (of("services/s"), 404, "services \"s\" not found"),
        (of("services/s:81"), 503, "no service port 81 found for service \"s\""),
        ("/api/v1/nodes/ftp:n:1/proxy/".to_owned(), 400, "invalid node request \"ftp:n:1\""),
        ("/api/v1/nodes/n:81/proxy/".to_owned(), 400, "address not allowed"),
        ("/api/v1/nodes/x/proxy/".to_owned(), 404, "nodes \"x\" not found"),
    ] {
        let reply = call(&api, "GET", &path, Value::Null).await;
        assert_eq!((reply.code, reply.body["message"].as_str()), (code, Some(message)), "{path}");
    }
    let patched = call(&api, "PATCH", &format!("{PODS}/p/status"), own).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(call(&api, "GET", &of("pods/p"), Value::Null).await.body["message"], "address not allowed");
    let made = call(&api, "POST", "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", slice).await;
    assert_eq!(made.code, 201, "{}", made.body);
    // One endpoint names no pod, the other one a pod that has another address.
    let reply = call(&api, "GET", &of("services/s:web"), Value::Null).await;
    assert_eq!(
        (reply.code, reply.body["message"].as_str()),
        (503, Some("no endpoints available for service \"s:web\""))
    );
    let eve = User { name: "eve".into(), ..User::default() };
    assert_eq!(send(&api, &eve, "GET", "/api/v1/nodes/n/proxy/", "", "*/*", "").await.code, 403);
}

#[tokio::test]
async fn upgraded_connections_are_passed_on_byte_for_byte() {
    let api = bed().await;
    let (connector, listener) = in_process(ClientIdentity::default());
    let router = api.router().layer(axum::Extension(User::internal("test")));
    tokio::spawn(serve_in_process("an API", listener, router, CancellationToken::new()));
    let upgrade = async |path: &str| {
        let mut stream = connector.connect().await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: shouting\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        (stream, String::from_utf8(answer).unwrap())
    };
    let (mut stream, head) = upgrade("/api/v1/nodes/n/proxy/shout?x=1").await;
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("x-query: x=1"), "{head}");
    stream.write_all(b"hello").await.unwrap();
    let mut shouted = [0; 5];
    stream.read_exact(&mut shouted).await.unwrap();
    assert_eq!(&shouted, b"HELLO");
    let (_, refused) = upgrade("/api/v1/nodes/n/proxy/plain").await;
    assert!(refused.starts_with("HTTP/1.1 500"), "{refused}");
}
