//! What a request needs a right to, as upstream maps paths to subresources of the node. Pure.

use axum::http::Method;

/// The verb of a request.
pub(super) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The subresources any of which lets a request through, the narrowest first. `proxy` is the right to everything that
/// has no narrower one of its own (KEP-2862).
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
        assert_eq!(verb(&Method::HEAD), "get");
        assert_eq!(verb(&Method::POST), "create");
    }
}
