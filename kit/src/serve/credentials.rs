//! Credentials in requests. Pure.

use axum::http::{HeaderMap, Uri, header};

/// The bearer token of an `Authorization` header. The scheme is case-insensitive (RFC 9110).
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = shown.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Whether a request with a client certificate may become a WebSocket. Browsers present a certificate for any page, and
/// a WebSocket is open to pages of any origin, so the page must be of this server, or of this host. Clients that are no
/// browsers send no `Origin`.
#[must_use]
pub fn is_own_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
    let Some(authority) = origin.as_ref().and_then(Uri::authority) else { return false };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]")
        || host.is_some_and(|host| host.eq_ignore_ascii_case(authority.as_str()))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn tokens_of_requests() {
        for (shown, token) in [
            ("Bearer x", Some("x")),
            ("bearer x", Some("x")),
            ("BEARER   x ", Some("x")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic x", None),
            ("", None),
        ] {
            assert_eq!(bearer(&headers(&[("authorization", shown)])), token, "{shown:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn pages_of_others_are_not_own() {
        for (origin, own) in [
            ("https://node:10250", true),
            ("https://NODE:10250", true),
            ("http://localhost", true),
            ("http://127.0.0.1:8080", true),
            ("https://node", false),
            ("https://evil.example", false),
            ("https://localhost.evil.example", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(is_own_origin(&headers(&[("host", "node:10250"), ("origin", origin)])), own, "{origin:?}");
        }
        assert!(is_own_origin(&headers(&[("host", "node:10250")])));
        assert!(!is_own_origin(&headers(&[("origin", "https://node")])));
    }
}
