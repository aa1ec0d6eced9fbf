//! What becomes of requests on their way to an extension and of its answers on theirs.

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn someone() -> User {
    User {
        name: "jane".to_owned(),
        uid: "42".to_owned(),
        groups: vec!["system:masters".to_owned(), "dev".to_owned()],
        extra: [("a/b".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
    }
}

#[tokio::test]
async fn requests_are_passed_on_with_who_they_are_from() {
    let bed = Bed::new().await;
    bed.server.calls();
    let request = Request::post(format!("{THINGS}?b=2&a=1%202"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, "Bearer secret")
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .header("x-remote-uid", "0")
        .header("X-Remote-Extra-Scopes", "all")
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("audit-id", "7")
        .header("x-kept", "yes")
        .body(Body::from("{\"a\": 1}"))
        .unwrap();
    let (code, headers, body) = bed.raw(&someone(), request).await;
    assert_eq!(code, 200, "{body}");
    let echo: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&echo["method"], &echo["body"]), (&json!("POST"), &json!("{\"a\": 1}")));
    for gone in ["x-hop", "access-control-allow-origin"] {
        assert!(!headers.contains_key(gone), "{gone}");
    }
    assert_eq!(headers["audit-id"], "7");
    let call = bed.server.calls().remove(0);
    assert_eq!(call.uri, format!("{THINGS}?a=1+2&b=2"));
    for (name, wanted) in [
        ("x-remote-user", vec!["jane"]),
        ("x-remote-uid", vec!["42"]),
        ("x-remote-group", vec!["system:masters", "dev", "system:authenticated"]),
        ("x-remote-extra-a%2fb", vec!["x", "y"]),
        ("x-remote-extra-scopes", vec![]),
        ("authorization", vec![]),
        ("x-private", vec![]),
        ("x-kept", vec!["yes"]),
        ("audit-id", vec!["7"]),
        ("host", vec![bed.server.address.to_string().as_str()]),
    ] {
        assert_eq!(call.header(name), wanted, "{name}");
    }
}

#[tokio::test]
async fn who_acts_as_another_is_the_other_and_rights_are_checked_here() {
    let bed = Bed::new().await;
    bed.server.calls();
    let request = Request::get(THINGS)
        .header("impersonate-user", "bob")
        .header("impersonate-group", "system:masters")
        .body(Body::empty())
        .unwrap();
    assert_eq!(bed.raw(&someone(), request).await.0, 200);
    let call = bed.server.calls().remove(0);
    assert_eq!(call.header("x-remote-user"), ["bob"]);
    assert_eq!(call.header("impersonate-user"), [""; 0]);
    let nobody = User { name: "nobody".to_owned(), ..User::default() };
    let (code, _, body) = bed.raw(&nobody, Request::get(THINGS).body(Body::empty()).unwrap()).await;
    assert_eq!(code, 403, "{body}");
    let why = "things.ext.example is forbidden: User \\\"nobody\\\" cannot list resource \\\"things\\\" in API group \\\"ext.example\\\" in the namespace \\\"n\\\"";
    assert!(body.contains(why), "{body}");
    assert!(bed.server.calls().is_empty(), "nothing of it was passed on");
}

#[tokio::test]
async fn events_arrive_as_they_come() {
    let bed = Bed::new().await;
    let request = Request::get(format!("{THINGS}?watch=true")).extension(someone()).body(Body::empty()).unwrap();
    let mut body = bed.api.router().oneshot(request).await.unwrap().into_body();
    for number in 0..3 {
        let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await.unwrap().unwrap().unwrap();
        let event: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        assert_eq!(event["object"]["metadata"]["name"], format!("e{number}"));
        bed.server.next.notify_one();
    }
}

#[tokio::test]
async fn upgraded_connections_are_passed_through() {
    let bed = Bed::new().await;
    let router = bed.api.router().layer(axum::Extension(someone()));
    let (near, far) = tokio::io::duplex(1 << 16);
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        router.clone().oneshot(request.map(Body::new))
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service);
    tokio::spawn(serving.with_upgrades());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = |path: &str| {
        Request::post(format!("{THINGS}/a/{path}"))
            .header("connection", "Upgrade")
            .header("upgrade", "shouting")
            .body(Body::empty())
            .unwrap()
    };
    let refused = sender.send_request(request("stubborn")).await.unwrap();
    assert_eq!(refused.status(), 503);
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "invalid upgrade response: status code 200\n");
    let mut answer = sender.send_request(request("exec")).await.unwrap();
    assert_eq!(answer.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"HELLO");
}

#[tokio::test]
async fn answers_are_the_extensions_own() {
    let bed = Bed::new().await;
    assert_eq!(bed.get(&format!("{THINGS}/gone")).await, (410, String::new()));
    let away = "the backend attempted to redirect this request, which is not permitted";
    assert_eq!(bed.get(&format!("{THINGS}/away")).await, (502, away.to_owned()));
    let request = Request::get(format!("{THINGS}/cut")).extension(someone()).body(Body::empty()).unwrap();
    let body = bed.api.router().oneshot(request).await.unwrap().into_body();
    assert!(body.collect().await.is_err(), "what is cut off is no whole answer");
    // It is noticed before the condition says so.
    bed.server.die();
    let (code, body) = bed.get(THINGS).await;
    assert_eq!(code, 503, "{body}");
    assert!(body.starts_with("error trying to reach service: ") || body == "service unavailable\n", "{body}");
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let bed = Bed::new().await;
    bed.server.act(Act::Hang);
    let list = bed.get("/apis/ext.example/v1").await;
    assert_eq!(list, (503, "error trying to reach service: context deadline exceeded\n".to_owned()));
    let (code, body) = bed.get(&format!("{THINGS}/b?timeout=1s")).await;
    assert!(code == 504 || body == "service unavailable\n", "{code} {body}");
}
