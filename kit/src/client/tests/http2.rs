//! Against our own server over TLS: as one connection, and what that must not hold up.

use std::{collections::BTreeSet, net::SocketAddr};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream};
use http::Version;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::serve::{self, Caller, LongRunning, Pems, Tls};

type Seen = Arc<Mutex<BTreeSet<(SocketAddr, bool)>>>;

async fn respond(State(seen): State<Seen>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    caller.authenticated();
    let is_http2 = request.version() == Version::HTTP_2;
    seen.lock().insert((caller.address().unwrap(), is_http2));
    if request.uri().query().unwrap_or_default().contains("watch=true") {
        let map =
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n","resourceVersion":"2"}}"#;
        let first = Bytes::from(format!("{{\"type\":\"ADDED\",\"object\":{map}}}\n"));
        let body = stream::iter([Ok::<_, std::io::Error>(first)]).chain(stream::pending());
        return (Extension(LongRunning), Body::from_stream(body)).into_response();
    }
    ([("content-type", "application/json")], list(1)).into_response()
}

/// Our server, with a key of Go, and the connections that it saw.
async fn tls_server() -> (kube::Config, Seen, CancellationToken) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let text = windlass_fixtures::files::key("go-p256-sec1.pem");
    let tls = Tls::new(Pems { cert: text.clone(), key: text, client_ca: None }).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = kube::Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.accept_invalid_certs = true;
    let (seen, shutdown) = (Seen::default(), CancellationToken::new());
    let router = Router::new().fallback(respond).with_state(Arc::clone(&seen));
    tokio::spawn(serve::serve_tls("h2", listener, tls, router, Default::default(), shutdown.clone()));
    (config, seen, shutdown)
}

/// As many watches as a node with 110 pods has, each with a ConfigMap and a Secret of its own, and requests besides them.
#[tokio::test]
async fn a_nodes_watches_share_connections_and_requests_find_room() {
    let (config, seen, _stop) = tls_server().await;
    let access = Access::new(config).unwrap();
    let api = maps_of(&access, LONG);
    // The first connection negotiates the protocol.
    api.list(&ListParams::default()).await.unwrap();
    let mut watches = Vec::new();
    for number in 0..220 {
        let params = kube::api::WatchParams::default().fields(&format!("metadata.name=m{number}"));
        let mut watch = Box::pin(api.watch(&params, "1").await.unwrap());
        let first = tokio::time::timeout(LONG_TIMEOUT, watch.try_next()).await.expect("its first event");
        first.unwrap().unwrap();
        watches.push(watch);
    }
    for _ in 0..20 {
        let listed = tokio::time::timeout(LONG_TIMEOUT, api.list(&ListParams::default())).await;
        listed.expect("no request waits behind watches").unwrap();
    }
    let seen = seen.lock().clone();
    assert!(seen.iter().all(|(_, is_http2)| *is_http2), "{seen:?}");
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Watches over HTTP/2 go on when requests move to other connections; they end with the credentials.
#[tokio::test]
async fn watches_that_work_outlive_a_silence_of_another_request() {
    let (config, _, _stop) = tls_server().await;
    let access = Access::new(config.clone()).unwrap();
    let api = maps_of(&access, LONG);
    let mut watch = Box::pin(api.watch(&kube::api::WatchParams::default(), "1").await.unwrap());
    watch.try_next().await.unwrap().unwrap();
    access.0.move_requests();
    let next = tokio::time::timeout(Duration::from_millis(300), watch.try_next()).await;
    assert!(next.is_err(), "it has ended: {next:?}");
    let mut other = config;
    other.auth_info.token = Some("another".to_owned().into());
    assert!(access.replace(other).unwrap());
    let next = tokio::time::timeout(LONG_TIMEOUT, watch.try_next()).await.expect("it begins again");
    assert!(next.unwrap().is_none());
}
