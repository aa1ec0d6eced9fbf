//! Connections to processes and ports of pods: taken over from the client and handed to the pod's node, byte for byte.

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use serde_json::Value;
use windlass_kit::{percent, serve};

use super::{
    Answer, Call,
    error::ApiError,
    header_text,
    special::pick_container,
    target::{Options, Target},
};

/// The subresources that turn a connection over.
pub(super) const SUBRESOURCES: [&str; 3] = ["attach", "exec", "portforward"];

/// The annotation that names the container which is meant when none is.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// How browsers show a token, which cannot set headers: as one of the protocols that they offer.
pub(super) const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// What of the client's headers concerns the node.
const ASKED: [HeaderName; 5] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    HeaderName::from_static("x-stream-protocol-version"),
];

impl Call {
    /// Rights are asked as for any other request. A `GET` turns a connection over as well as a `POST`, so since 1.35
    /// the right to `get` is not enough for it.
    pub(super) fn also_needs_create(target: &Target, verb: &str) -> bool {
        verb == "get" && target.sub.as_deref().is_some_and(|sub| SUBRESOURCES.contains(&sub))
    }

    pub(super) async fn connect(&self, target: &Target, options: &Options) -> Answer {
        let words = header_text(&self.headers, header::CONNECTION).to_ascii_lowercase();
        let upgrade = self.take_upgrade().filter(|_| words.split(',').any(|w| w.trim() == "upgrade"));
        let upgrade = upgrade.ok_or_else(|| ApiError::bad_request("Upgrade request required"))?;
        if self.by_certificate && !serve::is_own_origin(&self.headers) {
            let why = "a page of another origin may not use the client certificate of its browser here";
            return Err(ApiError::new(403, "Forbidden", why));
        }
        let pod = self.fetch(target)?.value();
        let path = path(target, options, &pod)?;
        let (kubelet, node) = self.kubelet_of(target, &pod)?;
        kubelet.turn_over(&node, &self.method, &path, forwarded(&self.headers), upgrade, &self.api.inner.closing).await
    }
}

/// The path and query that the node's API has for it. Pure.
fn path(target: &Target, options: &Options, pod: &Value) -> Result<String, ApiError> {
    let (namespace, name) = (target.namespace.as_deref().unwrap_or(""), target.name.as_deref().unwrap_or(""));
    // As upstream converts booleans: only no value, `false` in any case, and `0` are false.
    let is = |key: &str| options.get(key).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"));
    let mut query: Vec<String> = Vec::new();
    let sub = target.sub.as_deref().unwrap_or("");
    if sub == "portforward" {
        let ports =
            options.all.iter().filter(|(k, _)| k == "ports").map(|(_, v)| format!("port={}", percent::encoded(v, "")));
        query.extend(ports);
        return Ok(format!("/portForward/{namespace}/{name}?{}", query.join("&")));
    }
    let wanted = options.get("container").filter(|c| !c.is_empty());
    let container = match wanted {
        Some(container) => pick_container(pod, name, container)?,
        None => {
            let noted = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str().unwrap_or("");
            pick_container(pod, name, noted).or_else(|_| pick_container(pod, name, ""))?
        }
    };
    for (asked, node) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if is(asked) {
            query.push(format!("{node}=1"));
        }
    }
    if sub == "exec" {
        query.extend(
            options
                .all
                .iter()
                .filter(|(k, _)| k == "command")
                .map(|(_, v)| format!("command={}", percent::encoded(v, ""))),
        );
    }
    Ok(format!("/{sub}/{namespace}/{name}/{container}?{}", query.join("&")))
}

/// The headers that the node is to see: never those that show who asks.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in ASKED {
        for value in headers.get_all(&name) {
            passed.append(name.clone(), value.clone());
        }
    }
    let protocols: Vec<&str> = protocols(headers).filter(|p| !p.starts_with(TOKEN_PROTOCOL)).collect();
    if let (false, Ok(value)) = (protocols.is_empty(), HeaderValue::from_str(&protocols.join(", "))) {
        passed.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    passed
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|v| v.split(',')).map(str::trim).filter(|p| !p.is_empty())
}

/// The token that a client shows among its protocols.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let shown = protocols(headers).find_map(|p| p.strip_prefix(TOKEN_PROTOCOL))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(shown).ok()?).ok()
}

/// What of the node's headers concerns the client.
pub(super) fn answered(parts: &axum::http::response::Parts) -> Response {
    let mut response = Response::new(axum::body::Body::empty());
    *response.status_mut() = parts.status;
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_ACCEPT,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::CONTENT_TYPE,
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderName::from_static("x-accepted-stream-protocol-versions"),
    ] {
        for value in parts.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(sub: &str, query: &str, pod: &Value) -> Result<String, ApiError> {
        let path = format!("api/v1/namespaces/d/pods/p/{sub}");
        let target = Target::read(&path.split('/').collect::<Vec<_>>()).unwrap();
        let options = Options::read(&format!("/?{query}").parse().unwrap()).unwrap();
        super::path(&target, &options, pod)
    }

    #[test]
    fn paths_of_the_node() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(
            asked("exec", "command=sh&command=-c&command=a%20%26b%2B&stdin=true&stdout=1&stderr=false&tty=true", &one)
                .unwrap(),
            "/exec/d/p/a?input=1&output=1&tty=1&command=sh&command=-c&command=a%20%26b%2B"
        );
        assert_eq!(asked("attach", "stdout=true&command=x", &one).unwrap(), "/attach/d/p/a?output=1");
        assert_eq!(
            asked("attach", "stdin=&stdout=False&stderr=yes&tty=0", &one).unwrap(),
            "/attach/d/p/a?input=1&error=1"
        );
        assert_eq!(
            asked("portforward", "ports=80&ports=81,82", &one).unwrap(),
            "/portForward/d/p?port=80&port=81%2C82"
        );
    }

    #[test]
    fn containers() {
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(asked("exec", "container=b", &two).unwrap(), "/exec/d/p/b?");
        assert_eq!(asked("exec", "", &two).unwrap_err().code, 400);
        assert_eq!(asked("exec", "container=x", &two).unwrap_err().code, 400);
        let mut noted = two.clone();
        noted["metadata"]["annotations"][DEFAULT_CONTAINER] = json!("b");
        assert_eq!(asked("exec", "", &noted).unwrap(), "/exec/d/p/b?");
        noted["metadata"]["annotations"][DEFAULT_CONTAINER] = json!("x");
        assert_eq!(asked("exec", "", &noted).unwrap_err().code, 400);
    }

    #[test]
    fn who_asks_is_not_told() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("base64url.bearer.authorization.k8s.io.aGk, v4.channel.k8s.io"),
        );
        assert_eq!(token(&headers).as_deref(), Some("hi"));
        let passed = forwarded(&headers);
        assert_eq!(
            (passed.len(), &passed[header::SEC_WEBSOCKET_PROTOCOL]),
            (2, &HeaderValue::from_static("v4.channel.k8s.io"))
        );
    }
}
