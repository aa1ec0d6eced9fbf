//! Who may do what by which path: the questions of `tests/rights/record.py`, and what a kube-apiserver answered them.

use axum::http::HeaderValue;

use super::*;

const ANSWERS: &str = include_str!("../../../tests/rights/answers.tsv");

/// Where this API answers otherwise: user, method and path as far as they matter, a part of the body, our code, and
/// why.
const DIFFERENCES: [(&str, &str, &str, &str, u16, &str); 5] = [
    ("", "GET", "/api/v1/namespaces/n/secrets/%2e%2e", "", 404, "what cannot be a name is the name of nothing"),
    ("admin", "POST", "/api/v1/configmaps", "", 400, "the error says that the namespace is missing"),
    (NODE, "POST", REQUESTS, "\"r4-", 403, TWO_NAMES),
    (NODE, "POST", REQUESTS, "\"r5-", 403, TWO_NAMES),
    (NODE, "POST", REQUESTS, "\"r6-", 403, TWO_NAMES),
];

const NODE: &str = "system:node:n1";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TWO_NAMES: &str = "a request with several common names is refused, where upstream reads the last one";

/// A line of the recording.
struct Question<'a> {
    who: &'a str,
    headers: &'a str,
    method: &'a str,
    path: &'a str,
    body: &'a str,
}

impl Question<'_> {
    fn request(&self) -> Request<Body> {
        let kind = if self.method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut request = Request::builder().method(self.method).uri(self.path).header(header::CONTENT_TYPE, kind);
        for pair in self.headers.split(' ').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap();
            let value = windlass_kit::percent::decoded(value).unwrap();
            request = request.header(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        if self.who != "admin" {
            let (user, group) = self.who.split_once(' ').unwrap_or((self.who, ""));
            request = request.header("impersonate-user", user);
            request = if group.is_empty() { request } else { request.header("impersonate-group", group) };
        }
        let admin = User { name: "admin".to_owned(), ..User::internal("admin") };
        request.extension(admin).body(Body::from(self.body.to_owned())).unwrap()
    }

    fn difference(&self) -> Option<u16> {
        let same = DIFFERENCES.iter().find(|(who, method, path, body, ..)| {
            self.who != "nobody"
                && self.who.starts_with(who)
                && self.method == *method
                && self.path.starts_with(path)
                && self.body.contains(body)
        });
        same.map(|(.., code, _)| *code)
    }
}

#[tokio::test]
async fn rights_are_answered_as_by_kube_apiserver() {
    let api = api();
    rbac::add_default_roles(&api).await;
    for namespace in ["default", "kube-node-lease"] {
        call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
    }
    let (mut asked, mut wrong) = (0, Vec::new());
    for line in ANSWERS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [who, headers, method, path, body, code, message] = fields[..] else { panic!("{line}") };
        let question = Question { who, headers, method, path, body };
        let response = api.router().oneshot(question.request()).await.unwrap();
        let found = response.status().as_u16();
        let code = question.difference().unwrap_or_else(|| code.parse().unwrap());
        // Others may last.
        let said = if found == 403 {
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&bytes).unwrap();
            body["message"].as_str().unwrap().to_owned()
        } else {
            String::new()
        };
        let message: String = serde_json::from_str(message).unwrap();
        asked += 1;
        if found != code || (question.difference().is_none() && said != message) {
            wrong.push(format!(
                "{who} {headers} {method} {path} {body}\n  wanted {code} {message}\n  found  {found} {said}"
            ));
        }
    }
    assert!(asked > 700, "{asked}");
    assert!(wrong.is_empty(), "{} of {asked} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
