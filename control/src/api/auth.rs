//! Who may do what: administrators everything, a node what the Node authorizer lets it do, kube-proxy what its role has,
//! others nothing. Pure.

use super::{
    identity::UserInfo,
    node_authorizer::{self, Relations},
    target::{Options, Target},
};
use crate::select::Fields;

/// What is asked for, by requests and in access reviews.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attributes<'a> {
    pub(super) verb: &'a str,
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) sub: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// What a field selector wants `spec.nodeName` to be, if it does.
    pub(super) selected_node: Option<&'a str>,
}

/// The target that rights are asked for: a list or watch with `metadata.name=x` is about that object alone.
pub(super) fn asked(verb: &str, target: &Target, options: &Options) -> Target {
    let mut asked = target.clone();
    if asked.name.is_none() && matches!(verb, "list" | "watch") {
        let fields = Fields::parse(&options.fields, &target.resource.gvk).unwrap_or_default();
        asked.name = fields.exact("metadata.name").filter(|name| is_path_segment(name)).map(str::to_owned);
    }
    asked
}

/// Whether a name can stand in a path.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

/// Whether `user` may `verb` the target; the error is an explanation, often empty.
pub(super) fn authorize(
    user: &UserInfo,
    verb: &str,
    target: &Target,
    options: &Options,
    relations: &dyn Relations,
) -> Result<(), String> {
    let fields = Fields::parse(&options.fields, &target.resource.gvk).unwrap_or_default();
    let attributes = Attributes {
        verb,
        group: target.resource.gvk.group,
        resource: target.resource.plural,
        sub: target.sub.as_deref().unwrap_or(""),
        namespace: target.namespace.as_deref().unwrap_or(""),
        name: target.name.as_deref().unwrap_or(""),
        selected_node: fields.exact("spec.nodeName"),
    };
    decide(user, &attributes, relations)
}

pub(super) fn decide(user: &UserInfo, what: &Attributes<'_>, relations: &dyn Relations) -> Result<(), String> {
    if user.is_in(crate::pki::MASTERS) {
        return Ok(());
    }
    if user.name == PROXY {
        return if proxies(what) { Ok(()) } else { Err(String::new()) };
    }
    let Some(node) = user.as_node() else { return Err(String::new()) };
    if node.is_empty() {
        return Err(format!("unknown node for user {:?}", user.name));
    }
    node_authorizer::decide(node, what, relations).or_else(|why| if follows_slices(what) { Ok(()) } else { Err(why) })
}

/// The user that kube-proxy is.
const PROXY: &str = "system:kube-proxy";

/// What upstream's cluster role `system:node-proxier` lets kube-proxy do.
fn proxies(what: &Attributes<'_>) -> bool {
    match (what.group, what.resource, what.sub, what.verb) {
        ("", "services" | "endpoints" | "nodes", "", "list" | "watch") | ("", "nodes", "", "get") => true,
        ("discovery.k8s.io", "endpointslices", "", "list" | "watch") => true,
        ("networking.k8s.io", "servicecidrs", "", "list" | "watch") => true,
        ("" | "events.k8s.io", "events", "", verb) => matches!(verb, "create" | "patch" | "update"),
        _ => false,
    }
}

/// What a node of this API may do beyond upstream's: `windlass agent` has one identity for the agent and the proxy.
fn follows_slices(what: &Attributes<'_>) -> bool {
    (what.group, what.resource, what.sub) == ("discovery.k8s.io", "endpointslices", "")
        && matches!(what.verb, "list" | "watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No object has to do with any node.
    struct Nothing;

    impl Relations for Nothing {
        fn related(&self, _: &str, _: &node_authorizer::Vertex) -> bool {
            false
        }
    }

    #[test]
    fn administrators_may_everything_and_strangers_nothing() {
        let user = |name: &str, groups: &[&str]| UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        };
        let what = Attributes { verb: "list", resource: "services", ..Attributes::default() };
        for (user, allowed) in [
            (UserInfo::internal("x"), true),
            (UserInfo::node("n1"), true),
            (UserInfo::proxy(), true),
            (user("eve", &[]), false),
            (user("system:node:n1", &["system:authenticated"]), false),
            (user("n1", &["system:nodes"]), false),
            (user("system:node:", &["system:nodes"]), false),
            (UserInfo::anonymous(), false),
        ] {
            assert_eq!(decide(&user, &what, &Nothing).is_ok(), allowed, "{user:?}");
        }
        let slices =
            |verb| Attributes { verb, group: "discovery.k8s.io", resource: "endpointslices", ..Attributes::default() };
        let may = |verb| decide(&UserInfo::node("n1"), &slices(verb), &Nothing).is_ok();
        assert!(may("list") && may("watch") && !may("get") && !may("create"));
    }

    #[test]
    fn a_list_of_one_name_is_about_that_object() {
        let about = |path: &str, query: &str| {
            let target = Target::read(&path.split('/').collect::<Vec<_>>()).unwrap();
            let options = Options::read(&format!("/?{query}").parse().unwrap()).unwrap();
            let verb = target.verb(&axum::http::Method::GET, &options).unwrap();
            asked(verb, &target, &options).name
        };
        let secrets = "api/v1/namespaces/d/secrets";
        assert_eq!(about(secrets, "fieldSelector=metadata.name%3Dx").as_deref(), Some("x"));
        assert_eq!(about(secrets, "watch=1&fieldSelector=type%3DOpaque,metadata.name%3Dx").as_deref(), Some("x"));
        for selector in [
            "metadata.name!%3Dx",
            "metadata.name%3D",
            "metadata.name%3Da%2Fb",
            "metadata.name%3D..",
            "type%3DOpaque",
            "nonsense",
        ] {
            assert_eq!(about(secrets, &format!("fieldSelector={selector}")), None, "{selector}");
        }
        assert_eq!(about("api/v1/namespaces/d/secrets/y", "fieldSelector=metadata.name%3Dx").as_deref(), Some("y"));
    }
}
