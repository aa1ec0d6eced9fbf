//! Upstream's default roles that need no objects: discovery and reviews of oneself for authenticated users, the version for
//! everybody, and what kube-proxy reads. Pure.

use crate::apiserver::{Attributes, Authorizer, Decision, NonResourceRule, ResourceRule, Rules, User};

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

    fn rules(&self, user: &User, _: &str) -> Rules {
        let mut rules = Rules { non_resource: vec![get(&PUBLIC_PATHS)], ..Rules::default() };
        if !user.is_anonymous() {
            rules.resource.extend(BASIC_USER.map(|(group, resources)| rule(&["create"], &[group], resources)));
            rules.non_resource.push(get(&DISCOVERY_PATHS));
        }
        if user.name == KUBE_PROXY_USER {
            rules.resource.extend(NODE_PROXIER.map(|(verbs, groups, resources)| rule(verbs, groups, resources)));
        }
        rules
    }
}

/// Paths that everybody may get.
const PUBLIC_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Paths that authenticated users may get.
const DISCOVERY_PATHS: [&str; 11] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];

/// What authenticated users may create: a group and its resources.
const BASIC_USER: [(&str, &[&str]); 2] = [
    ("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
    ("authentication.k8s.io", &["selfsubjectreviews"]),
];

/// What kube-proxy may do: verbs, groups, resources.
type RuleText = (&'static [&'static str], &'static [&'static str], &'static [&'static str]);
const NODE_PROXIER: [RuleText; 5] = [
    (&["list", "watch"], &[""], &["endpoints", "services"]),
    (&["get", "list", "watch"], &[""], &["nodes"]),
    (&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
    (&["list", "watch"], &["discovery.k8s.io"], &["endpointslices"]),
    (&["list", "watch"], &["networking.k8s.io"], &["servicecidrs"]),
];

fn get(paths: &[&'static str]) -> NonResourceRule {
    NonResourceRule { verbs: vec!["get"], paths: paths.to_vec() }
}

fn rule(verbs: &[&'static str], groups: &[&'static str], resources: &[&'static str]) -> ResourceRule {
    ResourceRule { verbs: verbs.to_vec(), groups: groups.to_vec(), resources: resources.to_vec() }
}

/// `system:public-info-viewer`.
fn is_public(what: &Attributes<'_>) -> bool {
    !what.is_resource && what.verb == "get" && PUBLIC_PATHS.contains(&what.path)
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
    let named = |(group, resources): &(&str, &[&str])| *group == what.group && resources.contains(&what.resource);
    what.verb == "create" && what.subresource.is_empty() && BASIC_USER.iter().any(named)
}

/// `system:node-proxier`.
fn is_node_proxier(what: &Attributes<'_>) -> bool {
    what.is_resource
        && what.subresource.is_empty()
        && NODE_PROXIER.iter().any(|(verbs, groups, resources)| {
            verbs.contains(&what.verb) && groups.contains(&what.group) && resources.contains(&what.resource)
        })
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

    #[test]
    fn what_the_rules_list_is_allowed() {
        for (user, resources, paths) in [(User::anonymous(), 0, 5), (User::node("n"), 3, 16), (User::proxy(), 10, 16)] {
            let rules = DefaultRoles.rules(&user, "n");
            let mut counted = (0, 0);
            for ResourceRule { verbs, groups, resources } in &rules.resource {
                for (verb, (group, resource)) in verbs.iter().flat_map(|verb| {
                    groups
                        .iter()
                        .flat_map(|group| resources.iter().map(move |r| (verb, (group, r))))
                        .collect::<Vec<_>>()
                }) {
                    let what = Attributes { verb, is_resource: true, group, resource, ..Attributes::default() };
                    assert_eq!(DefaultRoles.decide(&user, &what), Decision::Allow, "{what:?}");
                }
                counted.0 += groups.len() * resources.len();
            }
            for path in rules.non_resource.iter().flat_map(|rule| &rule.paths) {
                let path = path.replace('*', "x");
                let what = Attributes { verb: "get", path: &path, ..Attributes::default() };
                assert_eq!(DefaultRoles.decide(&user, &what), Decision::Allow, "{path}");
                counted.1 += 1;
            }
            assert_eq!(counted, (resources, paths), "{}", user.name);
        }
    }
}
