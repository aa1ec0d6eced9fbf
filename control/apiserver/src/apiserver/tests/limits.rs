//! What clients may take of the server, next to one another.

use windlass_kit::serve::ClientIdentity;

use super::*;

/// A body that is begun and never ends.
fn endless() -> Body {
    let begun = futures::stream::iter([Ok::<_, std::convert::Infallible>("{")]);
    Body::from_stream(begun.chain(futures::stream::pending()))
}

/// A request from outside of this process, by the holder of a certificate.
fn from_outside(groups: &[&str], method: &str, path: &str, body: Body) -> Request<Body> {
    let peer = ClientIdentity {
        name: "eve".to_owned(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..ClientIdentity::default()
    };
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    request.extension(peer).body(body).unwrap()
}

async fn code(api: &Api, request: Request<Body>) -> u16 {
    api.router().oneshot(request).await.unwrap().status().as_u16()
}

const ADMIN: &[&str] = &["system:masters"];
const TENANT: &[&str] = &["tenants"];

#[tokio::test(start_paused = true)]
async fn rights_to_reviews_are_decided_before_anything_is_read() {
    let api = api();
    rbac::add_default_roles(&api).await;
    for (path, expected) in [
        ("/apis/authentication.k8s.io/v1/tokenreviews", 403),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", 403),
        // Decided before it is known that there is no such resource.
        ("/apis/authorization.k8s.io/v1/others", 403),
    ] {
        let begun = tokio::time::Instant::now();
        assert_eq!(code(&api, from_outside(TENANT, "POST", path, endless())).await, expected, "{path}");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{path}");
    }
    // What everybody may ask is short and comes in time.
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    assert_eq!(code(&api, from_outside(TENANT, "POST", path, endless())).await, 408);
    let long = Body::from(format!("{{\"x\":{:?}}}", "x".repeat(64 << 10)));
    assert_eq!(code(&api, from_outside(TENANT, "POST", path, long)).await, 413);
    assert_eq!(code(&api, from_outside(TENANT, "POST", path, Body::from("{}"))).await, 201);
}

#[tokio::test(start_paused = true)]
async fn slow_reviews_block_their_sender_alone() {
    let api = api();
    rbac::add_default_roles(&api).await;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for _ in 0..MAX_REVIEWS_OF_USER {
        let (api, request) = (api.clone(), from_outside(TENANT, "POST", path, endless()));
        tokio::spawn(async move { code(&api, request).await });
    }
    // Until all of them wait for the rest of their bodies.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(code(&api, from_outside(TENANT, "POST", path, Body::from("{}"))).await, 429);
    assert_eq!(code(&api, from_outside(ADMIN, "POST", path, Body::from("{}"))).await, 201);
    let ann = ClientIdentity { name: "ann".to_owned(), ..ClientIdentity::default() };
    let mut of_another = from_outside(TENANT, "POST", path, Body::from("{}"));
    of_another.extensions_mut().insert(ann);
    assert_eq!(code(&api, of_another).await, 201);
    assert_eq!(call(&api, "POST", path, json!({})).await.code, 201);
    tokio::time::sleep(Duration::from_secs(5) + Duration::from_secs(1)).await;
    assert_eq!(code(&api, from_outside(TENANT, "POST", path, Body::from("{}"))).await, 201);
}

#[tokio::test]
async fn documents_of_all_types_are_made_one_at_a_time_and_hold_up_nobody() {
    let api = with_namespace().await;
    let turn = api.inner.documents_turn.acquire().await.unwrap();
    let asked = |path: &'static str| {
        let (api, request) = (api.clone(), from_outside(ADMIN, "GET", path, Body::empty()));
        tokio::spawn(async move { code(&api, request).await })
    };
    let documents = ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"].map(asked);
    // Until all of them wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for path in [MAPS, "/apis", "/version"] {
        assert_eq!(code(&api, from_outside(ADMIN, "GET", path, Body::empty())).await, 200, "{path}");
    }
    assert!(documents.iter().all(|one| !one.is_finished()));
    drop(turn);
    for one in documents {
        assert_eq!(one.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn slow_bodies_block_nobody() {
    let api = with_namespace().await;
    for _ in 0..MAX_MUTATING_REQUESTS_IN_FLIGHT + 1 {
        let (api, request) = (api.clone(), from_outside(ADMIN, "POST", MAPS, endless()));
        tokio::spawn(async move { code(&api, request).await });
    }
    // Until all of them wait for the rest of their bodies.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let request = from_outside(ADMIN, "POST", MAPS, Body::from(map("m").to_string()));
    assert_eq!(code(&api, request).await, 201);
}

#[tokio::test]
async fn parts_of_this_process_and_nodes_have_their_own_share() {
    let api = with_namespace().await;
    let shared = &api.inner.limits.shared;
    let (_reads, _writes) = (shared.reads.try_acquire_many(400).unwrap(), shared.writes.try_acquire_many(200).unwrap());
    assert_eq!(code(&api, from_outside(ADMIN, "GET", MAPS, Body::empty())).await, 429);
    assert_eq!(code(&api, from_outside(ADMIN, "POST", MAPS, Body::from(map("a").to_string()))).await, 429);
    // Both are counted in the metrics.
    let page = api.metrics().page(windlass_kit::prometheus::Format::Plain);
    let told = |name: &str| page.lines().filter(|line| line.starts_with(name) && line.contains("code=\"429\"")).count();
    assert_eq!((told("apiserver_request_terminations_total{"), told("apiserver_request_total{")), (2, 2), "{page}");
    assert!(page.contains("apiserver_current_inflight_requests{request_kind=\"mutating\"} 200"), "{page}");
    assert_eq!(call(&api, "POST", MAPS, map("a")).await.code, 201);
    let node = ClientIdentity {
        name: "system:node:n1".to_owned(),
        groups: vec![NODES_GROUP.to_owned()],
        ..ClientIdentity::default()
    };
    let mut request = from_outside(&[], "GET", "/api/v1/services", Body::empty());
    request.extensions_mut().insert(node);
    assert_eq!(code(&api, request).await, 200);
}

#[tokio::test]
async fn the_log_of_a_pod_without_a_node_is_empty() {
    let api = with_namespace().await;
    assert_eq!(call(&api, "POST", PODS, pod("p")).await.code, 201);
    assert_eq!(call(&api, "GET", &format!("{PODS}/p/log"), Value::Null).await.code, 204);
    assert_eq!(call(&api, "GET", &format!("{PODS}/p/log?container=x"), Value::Null).await.code, 400);
}
