//! What of the head of a request and of a response is passed on. Pure.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use windlass_kit::{percent, serve::headers as texts};

use crate::apiserver::{
    protocols_without_token,
    request::{error::ApiError, user::User},
};

pub(in crate::apiserver) const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers of one connection, as in Go's `ReverseProxy`.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// A backend must not decide who may read the pages of the API server.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// The path that the backend is asked for, decoded: what follows `proxy`. Empty without a slash behind it.
pub(super) fn backend_path(rest: &[String], request_path: &str) -> String {
    let mut path = rest.join("/");
    if !path.is_empty() && !path.starts_with('/') {
        path.insert(0, '/');
    }
    if request_path.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    if path.is_empty() { path } else { cleaned(&path) }
}

/// An absolute path without empty segments, `.` and `..`; a slash at its end stays.
pub(crate) fn cleaned(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let end = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

/// The path as it is written in a request, as Go escapes it.
pub(super) fn escaped(path: &str) -> String {
    percent::encoded(path, "$&+,/:;=@")
}

/// What the backend is asked for.
pub(in crate::apiserver) fn uri(path: &str, query: Option<&str>) -> Result<Uri, ApiError> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let path = if path.is_empty() { "/".to_owned() } else { escaped(path) };
    format!("{path}{query}").parse().map_err(|error| ApiError::bad_request(format!("the path cannot be used: {error}")))
}

/// The path of the API below which the backend's paths are.
pub(super) fn path_prefix(request_path: &str, path: &str) -> String {
    let request_path = percent::decoded(request_path).unwrap_or_else(|| request_path.to_owned());
    request_path.strip_suffix(path).unwrap_or(&request_path).to_owned()
}

/// Whether a response is a page with links.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let kind = texts::shown(headers, "content-type");
    kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html")
}

pub(in crate::apiserver) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = texts::items(headers, "connection").filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

pub(in crate::apiserver) fn remove_cors(headers: &mut HeaderMap) {
    for name in &CORS {
        headers.remove(name);
    }
}

/// The headers of a request for the backend.
pub(in crate::apiserver) fn request_headers(headers: &HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    let mut headers = without_credentials(headers);
    let trailers = headers.get_all(header::TE).into_iter().any(|te| te == "trailers");
    remove_hop_by_hop(&mut headers);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    add_client(&mut headers, client);
    headers
}

/// The headers of a request that upgrades its connection.
pub(in crate::apiserver) fn upgrade_headers(headers: &HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    let mut headers = without_credentials(headers);
    add_client(&mut headers, client);
    headers
}

/// What the client has shown to this server is not for the backend.
fn without_credentials(headers: &HeaderMap) -> HeaderMap {
    let is_credential = |name: &HeaderName| {
        let name = name.as_str();
        name == "authorization" || name.starts_with("x-remote-") || name.starts_with("impersonate-")
    };
    let kept = headers.iter().filter(|(name, _)| !is_credential(name));
    let mut headers: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    let others = protocols_without_token(&headers).join(", ");
    match HeaderValue::from_bytes(others.as_bytes()).ok().filter(|_| !others.is_empty()) {
        Some(value) => drop(headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value)),
        None => drop(headers.remove(header::SEC_WEBSOCKET_PROTOCOL)),
    }
    headers
}

/// Bytes of the name of a header that stay as they are; the rest is written with escapes (client-go's
/// `legalHeaderKeyBytes`).
const NAME_BYTES: &str = "!#$&'*+^`|";

/// Says who a request is from, as a proxy that has authenticated its user; what the client has said of that falls away.
///
/// # Errors
/// When a name cannot be the value of a header.
pub(crate) fn auth_proxy_headers(headers: &mut HeaderMap, user: &User) -> Result<(), String> {
    const USER: HeaderName = HeaderName::from_static("x-remote-user");
    const UID: HeaderName = HeaderName::from_static("x-remote-uid");
    const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
    let claims: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    let value = |text: &str| {
        HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("net/http: invalid header field value {text:?}"))
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", percent::encoded(key, NAME_BYTES));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| format!("{name:?}: {error}"))?;
        for text in values {
            headers.append(&name, value(text)?);
        }
    }
    Ok(())
}

/// Appends the client to those that the request has come by.
fn add_client(headers: &mut HeaderMap, client: Option<IpAddr>) {
    let Some(client) = client else { return };
    let all: Vec<String> = texts::items(headers, FORWARDED_FOR.as_str()).chain([client.to_string()]).collect();
    if let Ok(value) = HeaderValue::from_bytes(all.join(", ").as_bytes()) {
        headers.insert(FORWARDED_FOR, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn paths_of_the_backend() {
        const PROXY: &str = "/api/v1/nodes/n/proxy";
        for (rest, end, path, prefix) in [
            (&[][..], "", "", PROXY),
            (&[], "/", "/", PROXY),
            (&["a"], "/a", "/a", PROXY),
            (&["a", "b"], "/a/b/", "/a/b/", PROXY),
            (&["a", "", "b"], "/a//b", "/a/b", "/api/v1/nodes/n/proxy/a//b"),
            (&["..", "..", "x"], "/../../x", "/x", "/api/v1/nodes/n/proxy/../.."),
        ] {
            let rest: Vec<String> = rest.iter().map(|part| (*part).to_owned()).collect();
            let asked = format!("{PROXY}{end}");
            assert_eq!(backend_path(&rest, &asked), path, "{end}");
            assert_eq!(path_prefix(&asked, path), prefix, "{end}");
        }
        assert_eq!(uri("/a b/ü?@x", Some("q=1&r=%2F")).unwrap(), "/a%20b/%C3%BC%3F@x?q=1&r=%2F");
        assert_eq!(uri("", Some("q")).unwrap(), "/?q");
    }

    #[test]
    fn credentials_and_headers_of_the_connection_stay_here() {
        let asked = headers(&[
            ("authorization", "Bearer x"),
            ("impersonate-user", "jane"),
            ("x-remote-user", "root"),
            ("x-remote-extra-scopes", "all"),
            ("connection", "keep-alive, x-hop"),
            ("keep-alive", "5"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "192.0.2.1"),
            ("transfer-encoding", "chunked"),
        ]);
        let passed = request_headers(&asked, Some(IpAddr::from([192, 0, 2, 9])));
        assert_eq!(
            passed,
            headers(&[("te", "trailers"), ("cookie", "a=b"), ("x-forwarded-for", "192.0.2.1, 192.0.2.9")])
        );
        assert_eq!(request_headers(&HeaderMap::new(), None), HeaderMap::new());
    }

    #[test]
    fn an_upgrade_is_passed_on_without_the_token_among_its_protocols() {
        let token = "base64url.bearer.authorization.k8s.io.aGk, chat";
        let asked = headers(&[("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", token)]);
        let passed = upgrade_headers(&asked, None);
        let wanted = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", "chat")];
        assert_eq!(passed, headers(&wanted));
    }

    /// What a client says of itself never counts, however it writes it.
    #[test]
    fn who_a_request_is_from_is_said_here() {
        let user = User {
            name: "jürgen".to_owned(),
            uid: "42".to_owned(),
            groups: vec!["a".to_owned(), "system:authenticated".to_owned()],
            extra: [
                ("authentication.kubernetes.io/credential-id".to_owned(), vec!["JTI=1".to_owned()]),
                ("a%b/ü~'".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
            ]
            .into(),
        };
        let mut asked = headers(&[
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
            ("x-remote-uid", "0"),
            ("x-remote-extra-scopes", "all"),
            ("x-remote-other", "kept by nobody"),
            ("accept", "*/*"),
        ]);
        auth_proxy_headers(&mut asked, &user).unwrap();
        let said = |name: &str| texts::texts(&asked, name).unwrap();
        assert_eq!(said("x-remote-user"), ["jürgen"]);
        assert_eq!(said("x-remote-uid"), ["42"]);
        assert_eq!(said("x-remote-group"), ["a", "system:authenticated"]);
        assert_eq!(said("x-remote-extra-authentication.kubernetes.io%2fcredential-id"), ["JTI=1"]);
        assert_eq!(said("x-remote-extra-a%25b%2f%c3%bc~'"), ["1", "2"]);
        assert_eq!(asked.keys_len(), 6);
        let nobody = User { name: "a".to_owned(), ..User::default() };
        auth_proxy_headers(&mut asked, &nobody).unwrap();
        assert_eq!(asked, headers(&[("accept", "*/*"), ("x-remote-user", "a")]));
        let broken = User { name: "a\nx-remote-group: b".to_owned(), ..User::default() };
        assert!(auth_proxy_headers(&mut asked, &broken).is_err());
    }

    #[test]
    fn pages_are_html() {
        for (kind, page) in [("text/html; charset=utf-8", true), ("text/html", true), ("text/plain", false)] {
            assert_eq!(is_page(&headers(&[("content-type", kind)])), page, "{kind}");
        }
        assert!(!is_page(&HeaderMap::new()));
    }
}
