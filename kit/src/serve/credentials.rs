//! Credentials in requests. Pure.

use axum::http::{HeaderMap, Uri, header};

use super::headers::{self, NotText};

/// The bearer token of an `Authorization` header. The scheme is case-insensitive (RFC 9110).
///
/// # Errors
/// When the header is not text: unreadable credentials are not the same as none.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, NotText> {
    let Some(shown) = headers::text(headers, header::AUTHORIZATION.as_str())? else { return Ok(None) };
    let Some((scheme, token)) = shown.trim().split_once(' ') else { return Ok(None) };
    Ok(Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()))
}

/// Whether a request with a client certificate may become a WebSocket. Browsers present a certificate for any page, and
/// a WebSocket is open to pages of any origin, so the page must be of this server, or of this host. Clients that are no
/// browsers send no `Origin`.
#[must_use]
pub fn is_own_origin(headers: &HeaderMap) -> bool {
    let origin = match headers::text(headers, header::ORIGIN.as_str()) {
        Ok(None) => return true,
        Ok(Some(text)) => text.parse::<Uri>().ok(),
        Err(_) => None,
    };
    let Some(authority) = origin.as_ref().and_then(Uri::authority) else { return false };
    matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]")
        || headers::shown(headers, header::HOST.as_str()).eq_ignore_ascii_case(authority.as_str())
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
            assert_eq!(bearer(&headers(&[("authorization", shown)])), Ok(token), "{shown:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), Ok(None));
        let mut unreadable = HeaderMap::new();
        unreadable.insert(header::AUTHORIZATION, HeaderValue::from_bytes(b"Bearer \xff").unwrap());
        assert!(bearer(&unreadable).is_err());
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
