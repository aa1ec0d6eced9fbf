//! `exec`, `attach` and `portforward`: upgraded connections, proxied to the pod's node byte for byte.

use async_trait::async_trait;
use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, header},
};
use serde_json::{Value, json};
use windlass_kit::percent;

use super::container::{node_of, pick_container};
use crate::apiserver::{
    ApiError, ApiRequest, ApiResult, KubeletClient, Operation, Target, WriteOptions,
    handlers::subresource::SubresourceHandler, protocols_without_token, request::request_info::RequestOptions,
};

/// Annotation with the container that a request without one means.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The client's headers that are forwarded to the node.
const FORWARDED_HEADERS: [HeaderName; 5] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    HeaderName::from_static("x-stream-protocol-version"),
];

/// One of the three.
#[derive(Debug)]
pub(super) struct Connect {
    pub(super) subresource: &'static str,
    pub(super) kubelet: Option<KubeletClient>,
}

#[async_trait]
impl SubresourceHandler for Connect {
    fn connects(&self) -> bool {
        true
    }

    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        options: &RequestOptions,
        _body: &Bytes,
    ) -> ApiResult {
        let pod = request.read(target)?;
        let asked = options_object(target, options);
        request.admit(target, Operation::Connect, WriteOptions::None, asked, Some(&pod)).await?;
        let path = kubelet_path(target, self.subresource, options, &pod)?;
        let (kubelet, node) = node_of(request, self.kubelet.as_ref(), target, &pod)?;
        // As upstream: only what would lead somewhere has to be upgraded.
        let upgrade = request.requested_upgrade()?;
        let upgrade = upgrade.ok_or_else(|| ApiError::bad_request("Upgrade request required"))?;
        let headers = forwarded_headers(&request.headers);
        kubelet.upgrade(&node, &request.method, &path, headers, upgrade, request.closing()).await
    }
}

/// What is asked for, as an object of its kind, which admission is shown. Pure.
fn options_object(target: &Target, options: &RequestOptions) -> Value {
    let kind = target.served().and_then(|served| served.kind.as_ref());
    let mut object = json!({"kind": kind.map(|kind| kind.kind.as_ref()), "apiVersion": "v1"});
    let values = |key: &str| -> Vec<&str> {
        options.all.iter().filter(|(own, _)| own == key).map(|(_, value)| value.as_str()).collect()
    };
    if target.subresource() == "portforward" {
        let ports = values("ports").into_iter().flat_map(|text| text.split(',')).filter_map(|port| port.parse().ok());
        let ports: Vec<i64> = ports.collect();
        if !ports.is_empty() {
            object["ports"] = json!(ports);
        }
        return object;
    }
    for key in ["stdin", "stdout", "stderr", "tty"] {
        if options.get(key).is_some_and(is_true) {
            object[key] = json!(true);
        }
    }
    if let Some(container) = options.get("container").filter(|name| !name.is_empty()) {
        object["container"] = json!(container);
    }
    if target.subresource() == "exec" {
        object["command"] = json!(values("command"));
    }
    object
}

/// As upstream converts booleans: only no value, `false` in any case, and `0` are false.
fn is_true(text: &str) -> bool {
    text != "0" && !text.eq_ignore_ascii_case("false")
}

/// The path and query of the node's API. Pure.
fn kubelet_path(target: &Target, subresource: &str, options: &RequestOptions, pod: &Value) -> Result<String, ApiError> {
    let (namespace, name) = (target.namespace.as_deref().unwrap_or(""), target.name());
    let is = |key: &str| options.get(key).is_some_and(is_true);
    let mut query: Vec<String> = Vec::new();
    if subresource == "portforward" {
        let ports =
            options.all.iter().filter(|(k, _)| k == "ports").map(|(_, v)| format!("port={}", percent::encoded(v, "")));
        query.extend(ports);
        return Ok(format!("/portForward/{namespace}/{name}?{}", query.join("&")));
    }
    let wanted = options.get("container").filter(|c| !c.is_empty());
    let container = match wanted {
        Some(container) => pick_container(pod, name, container)?,
        None => {
            let annotated = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str().unwrap_or("");
            pick_container(pod, name, annotated).or_else(|_| pick_container(pod, name, ""))?
        }
    };
    for (asked, node) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if is(asked) {
            query.push(format!("{node}=1"));
        }
    }
    if subresource == "exec" {
        query.extend(
            options
                .all
                .iter()
                .filter(|(k, _)| k == "command")
                .map(|(_, v)| format!("command={}", percent::encoded(v, ""))),
        );
    }
    Ok(format!("/{subresource}/{namespace}/{name}/{container}?{}", query.join("&")))
}

/// The headers of the proxied request, without the caller's credentials.
fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    for name in FORWARDED_HEADERS {
        for value in headers.get_all(&name) {
            forwarded.append(name.clone(), value.clone());
        }
    }
    let protocols = protocols_without_token(headers).join(", ");
    if let (false, Ok(value)) = (protocols.is_empty(), HeaderValue::from_bytes(protocols.as_bytes())) {
        forwarded.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    forwarded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::{protocol_token, tests::target};

    fn path_of(subresource: &str, query: &str, pod: &Value) -> Result<String, ApiError> {
        let path = format!("/api/v1/namespaces/d/pods/p/{subresource}");
        let options = RequestOptions::parse(&format!("/?{query}").parse().unwrap()).unwrap();
        super::kubelet_path(&target(&path), subresource, &options, pod)
    }

    #[test]
    fn paths_of_the_node() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(
            path_of(
                "exec",
                "command=sh&command=-c&command=a%20%26b%2B&stdin=true&stdout=1&stderr=false&tty=true",
                &one
            )
            .unwrap(),
            "/exec/d/p/a?input=1&output=1&tty=1&command=sh&command=-c&command=a%20%26b%2B"
        );
        assert_eq!(path_of("attach", "stdout=true&command=x", &one).unwrap(), "/attach/d/p/a?output=1");
        assert_eq!(
            path_of("attach", "stdin=&stdout=False&stderr=yes&tty=0", &one).unwrap(),
            "/attach/d/p/a?input=1&error=1"
        );
        assert_eq!(
            path_of("portforward", "ports=80&ports=81,82", &one).unwrap(),
            "/portForward/d/p?port=80&port=81%2C82"
        );
    }

    #[test]
    fn containers() {
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(path_of("exec", "container=b", &two).unwrap(), "/exec/d/p/b?");
        assert_eq!(path_of("exec", "", &two).unwrap_err().code, 400);
        assert_eq!(path_of("exec", "container=x", &two).unwrap_err().code, 400);
        let mut annotated = two.clone();
        annotated["metadata"]["annotations"][DEFAULT_CONTAINER] = json!("b");
        assert_eq!(path_of("exec", "", &annotated).unwrap(), "/exec/d/p/b?");
        annotated["metadata"]["annotations"][DEFAULT_CONTAINER] = json!("x");
        assert_eq!(path_of("exec", "", &annotated).unwrap_err().code, 400);
    }

    #[test]
    fn credentials_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("base64url.bearer.authorization.k8s.io.aGk, v4.channel.k8s.io"),
        );
        assert_eq!(protocol_token(&headers).unwrap().as_deref(), Some("hi"));
        let forwarded = forwarded_headers(&headers);
        assert_eq!(
            (forwarded.len(), &forwarded[header::SEC_WEBSOCKET_PROTOCOL]),
            (2, &HeaderValue::from_static("v4.channel.k8s.io"))
        );
    }
}
