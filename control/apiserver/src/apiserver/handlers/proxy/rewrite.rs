//! Rewrites URLs of a backend to those of its `proxy` subresource, as upstream's proxy transport. Pure.

use windlass_kit::percent;

use super::head::{cleaned, escaped};

/// How the URLs of one response are rewritten.
#[derive(Debug, Clone)]
pub(super) struct Rewrite {
    /// The path of the API below which the backend's paths are.
    pub(super) prefix: String,
    /// The host of the backend itself.
    pub(super) backend_host: String,
    /// The host that the client has asked for.
    pub(super) request_host: String,
}

/// A URL, split; its parts are as they are written.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    scheme: Option<&'a str>,
    host: Option<&'a str>,
    path: &'a str,
    /// Query and fragment, with their marks.
    rest: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits a URL; refuses what Go's `url.Parse` does.
    fn parse(url: &'a str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("parse {url:?}: {why}"));
        if url.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return wrong("net/url: invalid control character in URL");
        }
        let (scheme, after) = match url.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))) {
            Some(0) if url.starts_with(':') => return wrong("missing protocol scheme"),
            Some(at) if url[at..].starts_with(':') && url.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                (Some(&url[..at]), &url[at + 1..])
            }
            _ => (None, url),
        };
        let end = after.find(['?', '#']).unwrap_or(after.len());
        let (before, rest) = after.split_at(end);
        let (host, path) = match before.strip_prefix("//") {
            Some(authority) => {
                let end = authority.find('/').unwrap_or(authority.len());
                let (authority, path) = authority.split_at(end);
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                (Some(host).filter(|host| !host.is_empty()), path)
            }
            None => (None, before),
        };
        let is_opaque = scheme.is_some() && !path.is_empty() && !path.starts_with('/');
        if scheme.is_none() && host.is_none() && path.split('/').next().is_some_and(|first| first.contains(':')) {
            return wrong("first path segment in URL cannot contain colon");
        }
        if !is_opaque && !has_valid_escapes(path) {
            return wrong("invalid URL escape");
        }
        Ok(Self { scheme, host, path, rest })
    }
}

/// Whether each percent sign begins an escape.
fn has_valid_escapes(path: &str) -> bool {
    let escapes = path.split('%').skip(1);
    escapes.into_iter().all(|escape| escape.len() >= 2 && escape.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

impl Rewrite {
    /// The path by which the client has asked, for the backend.
    pub(super) fn forwarded_uri(&self, path: &str) -> String {
        escaped(&cleaned(&format!("{}/{}", self.prefix, path.trim_start_matches('/'))))
    }

    /// The URL by which a client of the API reaches what a URL of the backend means.
    ///
    /// # Errors
    /// When it is no URL.
    pub(super) fn url(&self, url: &str) -> Result<String, String> {
        let Parts { scheme, host, path, rest } = Parts::parse(url)?;
        let is_of_others = host.is_some_and(|host| host != self.backend_host && host != self.request_host);
        if is_of_others || !path.starts_with('/') {
            return Ok(url.to_owned());
        }
        let origin = match (host, scheme) {
            (Some(host), scheme) if host == self.request_host => {
                format!("{}//{host}", scheme.map(|scheme| format!("{scheme}:")).unwrap_or_default())
            }
            _ => String::new(),
        };
        let decoded = percent::decoded(path).unwrap_or_else(|| path.to_owned());
        if decoded.starts_with(&self.prefix) {
            return Ok(format!("{origin}{path}{rest}"));
        }
        Ok(format!("{origin}{}{rest}", cleaned(&format!("{}{path}", escaped(&self.prefix)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite() -> Rewrite {
        Rewrite {
            prefix: "/api/v1/namespaces/n/pods/https:p:443/proxy".to_owned(),
            backend_host: "10.0.0.1:443".to_owned(),
            request_host: "127.0.0.1:8001".to_owned(),
        }
    }

    #[test]
    fn urls_of_the_backend_go_through_the_proxy() {
        const PREFIX: &str = "/api/v1/namespaces/n/pods/https:p:443/proxy";
        let own = format!("{PREFIX}/a");
        for (url, wanted) in [
            ("/a", format!("{PREFIX}/a")),
            ("/", format!("{PREFIX}/")),
            ("/a/?q=/x#y", format!("{PREFIX}/a/?q=/x#y")),
            ("/a//b/../c", format!("{PREFIX}/a/c")),
            ("/a%2Fb", format!("{PREFIX}/a%2Fb")),
            ("https://10.0.0.1:443/a", format!("{PREFIX}/a")),
            ("//10.0.0.1:443/a", format!("{PREFIX}/a")),
            ("http://127.0.0.1:8001/a", format!("http://127.0.0.1:8001{PREFIX}/a")),
            (&own, own.clone()),
            ("a/b", "a/b".to_owned()),
            ("../a", "../a".to_owned()),
            ("?q", "?q".to_owned()),
            ("#top", "#top".to_owned()),
            ("", String::new()),
            ("https://example.com/a", "https://example.com/a".to_owned()),
            ("https://10.0.0.1:443", "https://10.0.0.1:443".to_owned()),
            ("mailto:a@example.com", "mailto:a@example.com".to_owned()),
            ("javascript:void(0)", "javascript:void(0)".to_owned()),
        ] {
            assert_eq!(rewrite().url(url).unwrap(), wanted, "{url}");
        }
        for broken in [":a", "1:a/b", "/a%zz", "/a%4", "/a\nb"] {
            assert!(rewrite().url(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_backend_hears_by_which_path_it_is_reached() {
        const PREFIX: &str = "/api/v1/namespaces/n/pods/https:p:443/proxy";
        for (path, wanted) in [("/a b/", "/a%20b/"), ("/a", "/a"), ("", "/"), ("/", "/")] {
            assert_eq!(rewrite().forwarded_uri(path), format!("{PREFIX}{wanted}"), "{path}");
        }
    }
}
