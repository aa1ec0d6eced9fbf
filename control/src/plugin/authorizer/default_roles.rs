//! Upstream's default roles that need no objects: discovery and reviews of oneself for authenticated users, the version for
//! everybody, and what kube-proxy reads. Pure.

use crate::apiserver::{Attributes, Authorizer, Decision, User};

/// Allows what the default roles allow.
#[derive(Debug)]
pub(crate) struct DefaultRoles;

/// kube-proxy's user name.
const KUBE_PROXY_USER: &str = "system:kube-proxy";

impl Authorizer for DefaultRoles {
    fn decide(&self, user: &User, what: &Attributes<'_>) -> Decision {
        let allowed = is_public(what)
            || (!user.is_anonymous() && (is_discovery(what) || is_basic_user(what)))
            || (user.name == KUBE_PROXY_USER && is_node_proxier(what));
        if allowed { Decision::Allow } else { Decision::NoOpinion(String::new()) }
    }
}

/// `system:public-info-viewer`.
fn is_public(what: &Attributes<'_>) -> bool {
    !what.is_resource
        && what.verb == "get"
        && matches!(what.path, "/healthz" | "/livez" | "/readyz" | "/version" | "/version/")
}

/// `system:discovery`.
fn is_discovery(what: &Attributes<'_>) -> bool {
    let below =
        |base: &str| what.path == base || what.path.strip_prefix(base).is_some_and(|rest| rest.starts_with('/'));
    !what.is_resource
        && matches!(what.verb, "get" | "head")
        && (what.path == "/" || ["/api", "/apis", "/openapi", "/healthz", "/livez", "/readyz"].into_iter().any(below))
}

/// `system:basic-user`.
fn is_basic_user(what: &Attributes<'_>) -> bool {
    what.verb == "create"
        && matches!(
            (what.group, what.resource, what.subresource),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews", "")
                | ("authentication.k8s.io", "selfsubjectreviews", "")
        )
}

/// `system:node-proxier`.
fn is_node_proxier(what: &Attributes<'_>) -> bool {
    match (what.group, what.resource, what.subresource, what.verb) {
        ("", "services" | "endpoints" | "nodes", "", "list" | "watch") | ("", "nodes", "", "get") => true,
        ("discovery.k8s.io", "endpointslices", "", "list" | "watch") => true,
        ("networking.k8s.io", "servicecidrs", "", "list" | "watch") => true,
        ("" | "events.k8s.io", "events", "", verb) => matches!(verb, "create" | "patch" | "update"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_discovers_and_nobody_reads() {
        let eve = User { name: "eve".to_owned(), ..User::default() };
        let allows = |user: &User, what: &Attributes<'_>| DefaultRoles.decide(user, what) == Decision::Allow;
        let path = |path: &'static str| Attributes { verb: "get", path, ..Attributes::default() };
        for (one, anonymous, authenticated) in [
            ("/version", true, true),
            ("/api/v1", false, true),
            ("/apis", false, true),
            ("/openapi/v3", false, true),
            ("/apiserver", false, false),
            ("/metrics", false, false),
        ] {
            assert_eq!(allows(&User::anonymous(), &path(one)), anonymous, "{one}");
            assert_eq!(allows(&eve, &path(one)), authenticated, "{one}");
        }
        let what = |verb, resource| Attributes { verb, is_resource: true, resource, ..Attributes::default() };
        assert!(!allows(&eve, &what("list", "services")) && allows(&User::proxy(), &what("list", "services")));
        assert!(!allows(&User::proxy(), &what("list", "secrets")));
        let review = |resource| Attributes { group: "authorization.k8s.io", ..what("create", resource) };
        assert!(allows(&eve, &review("selfsubjectaccessreviews")) && !allows(&eve, &review("subjectaccessreviews")));
    }
}
