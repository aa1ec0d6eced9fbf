//! Request attributes for authorization, as upstream maps paths to subresources of the node. Pure.

use axum::http::Method;

/// The verb of a request. A `GET` opens a connection to a process or a port just as a `POST` does, so, as at the API
/// server since 1.35, `get`, which monitoring has, is not enough for it. Upstream's kubelet uses `get`, which
/// `get_connects` restores.
pub(super) fn verb(method: &Method, path: &str, get_connects: bool) -> &'static str {
    let connects = ["/exec/", "/attach/", "/portForward/", "/run/"].iter().any(|root| path.starts_with(root));
    match *method {
        Method::GET if connects && !get_connects => "create",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The subresources of which any one authorizes a request, the narrowest first. `proxy` covers everything that has no
/// narrower one (KEP-2862).
pub(super) fn subresources(path: &str) -> &'static [&'static str] {
    let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    for (root, rights) in [
        ("/stats", &["stats"][..]),
        ("/metrics", &["metrics"]),
        ("/logs", &["log"]),
        ("/checkpoint", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
        ("/pods", &["pods", "proxy"]),
        ("/runningpods", &["pods", "proxy"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/configz", &["configz", "proxy"]),
    ] {
        if below(root) {
            return rights;
        }
    }
    &["proxy"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_paths() {
        for (path, expected) in [
            ("/stats/summary", &["stats"][..]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/metricsx", &["proxy"]),
            ("/logs/", &["log"]),
            ("/logs/syslog", &["log"]),
            ("/pods", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/flagz", &["configz"]),
            ("/statusz", &["statusz"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
            ("/", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
        for (method, path, expected, upstream) in [
            (Method::GET, "/pods", "get", "get"),
            (Method::HEAD, "/pods", "get", "get"),
            (Method::POST, "/exec/ns/pod/c", "create", "create"),
            (Method::GET, "/exec/ns/pod/c", "create", "get"),
            (Method::GET, "/attach/ns/pod/c", "create", "get"),
            (Method::GET, "/portForward/ns/pod", "create", "get"),
            (Method::GET, "/executed", "get", "get"),
        ] {
            assert_eq!(verb(&method, path, false), expected, "{method} {path}");
            assert_eq!(verb(&method, path, true), upstream, "{method} {path}");
        }
    }
}
