//! The bytes that a Go client sends, as operators send them: protobuf bodies of every kind, of options too.

use std::fmt::Write as _;

use base64::Engine as _;

use super::*;

/// Recorded requests, and the codes that kube-apiserver gave them.
static REQUESTS: &str = include_str!("go_client.tsv");

#[tokio::test]
async fn requests_of_a_go_client_have_upstreams_codes() {
    let tokens = TokenIssuer::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let api = api_with(Some(tokens), None);
    let (mut rows, mut wrong) = (0, String::new());
    for line in REQUESTS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [method, path, content_type, accept, wanted, body] = fields[..] else { panic!("{line}") };
        let body = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.extension(User::internal("admin")).body(Body::from(body)).unwrap();
        let response = api.router().oneshot(request).await.unwrap();
        let code = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        if code.as_str() != wanted {
            writeln!(wrong, "{method} {path}: {code}, upstream {wanted}: {}", String::from_utf8_lossy(&bytes)).unwrap();
        }
        rows += 1;
    }
    assert!(rows > 900, "{rows}");
    assert!(wrong.is_empty(), "{wrong}");
}
