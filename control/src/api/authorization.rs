//! Authorization: administrators have all rights, nodes those of the Node authorizer, kube-proxy those of its role,
//! others none. Pure.

use windlass_apimachinery::selectors::FieldSelector;

use super::{
    ApiRequest,
    authentication::UserInfo,
    error::ApiError,
    node_authorizer::{self, Relations},
    request_info::{RequestInfo, RequestOptions},
};
use crate::selectable_fields;

/// Attributes of an authorization decision, for requests and access reviews.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attributes<'a> {
    pub(super) verb: &'a str,
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) subresource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// What a field selector wants `spec.nodeName` to be, if it does.
    pub(super) selected_node: Option<&'a str>,
}

/// The request as authorization sees it: a list or watch with `metadata.name=x` is about that object alone.
pub(super) fn narrow_to_name(verb: &str, info: &RequestInfo, options: &RequestOptions) -> RequestInfo {
    let mut info = info.clone();
    if info.name.is_none() && matches!(verb, "list" | "watch") {
        let fields =
            FieldSelector::parse(&options.fields, selectable_fields::of_kind(&info.resource.gvk)).unwrap_or_default();
        info.name = fields.exact("metadata.name").filter(|name| is_path_segment(name)).map(str::to_owned);
    }
    info
}

/// Whether a name is valid as a path segment.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

/// Whether `user` may `verb` the target; the error is an explanation, often empty.
pub(super) fn authorize(
    user: &UserInfo,
    verb: &str,
    info: &RequestInfo,
    options: &RequestOptions,
    relations: &dyn Relations,
) -> Result<(), String> {
    let fields =
        FieldSelector::parse(&options.fields, selectable_fields::of_kind(&info.resource.gvk)).unwrap_or_default();
    let attributes = Attributes {
        verb,
        group: info.resource.gvk.group,
        resource: info.resource.plural,
        subresource: info.subresource.as_deref().unwrap_or(""),
        namespace: info.namespace.as_deref().unwrap_or(""),
        name: info.name.as_deref().unwrap_or(""),
        selected_node: fields.exact("spec.nodeName"),
    };
    decide(user, &attributes, relations)
}

pub(super) fn decide(user: &UserInfo, what: &Attributes<'_>, relations: &dyn Relations) -> Result<(), String> {
    if user.is_in(crate::pki::MASTERS_GROUP) {
        return Ok(());
    }
    if user.name == KUBE_PROXY_USER {
        return if is_node_proxier_allowed(what) { Ok(()) } else { Err(String::new()) };
    }
    let Some(node) = user.as_node() else { return Err(String::new()) };
    if node.is_empty() {
        return Err(format!("unknown node for user {:?}", user.name));
    }
    node_authorizer::decide(node, what, relations)
        .or_else(|why| if is_endpoint_slice_watch(what) { Ok(()) } else { Err(why) })
}

/// kube-proxy's user name.
const KUBE_PROXY_USER: &str = "system:kube-proxy";

/// What upstream's cluster role `system:node-proxier` lets kube-proxy do.
fn is_node_proxier_allowed(what: &Attributes<'_>) -> bool {
    match (what.group, what.resource, what.subresource, what.verb) {
        ("", "services" | "endpoints" | "nodes", "", "list" | "watch") | ("", "nodes", "", "get") => true,
        ("discovery.k8s.io", "endpointslices", "", "list" | "watch") => true,
        ("networking.k8s.io", "servicecidrs", "", "list" | "watch") => true,
        ("" | "events.k8s.io", "events", "", verb) => matches!(verb, "create" | "patch" | "update"),
        _ => false,
    }
}

/// A right that nodes have here beyond upstream's: `windlass agent` has one identity for the agent and the proxy.
fn is_endpoint_slice_watch(what: &Attributes<'_>) -> bool {
    (what.group, what.resource, what.subresource) == ("discovery.k8s.io", "endpointslices", "")
        && matches!(what.verb, "list" | "watch")
}

/// The error of a request that is not authorized.
fn forbidden(user: &UserInfo, verb: &str, info: &RequestInfo, why: &str) -> ApiError {
    let resource = info.resource;
    let subresource = info.subresource.as_ref().map(|s| format!("/{s}")).unwrap_or_default();
    let place = match &info.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let mut why = why.to_owned();
    if !why.is_empty() {
        why = format!(": {why}");
    }
    let message = format!(
        "User {:?} cannot {verb} resource \"{}{subresource}\" in API group {:?} {place}{why}",
        user.name, resource.plural, resource.gvk.group
    );
    let name = info.name.as_deref().unwrap_or("");
    let subject = if name.is_empty() {
        resource.group_resource().to_owned()
    } else {
        format!("{} {name:?}", resource.group_resource())
    };
    ApiError::new(403, "Forbidden", format!("{subject} is forbidden: {message}")).about(resource, name)
}

impl ApiRequest {
    /// Refuses a request that the caller is not authorized for.
    pub(super) fn authorize(&self, verb: &str, info: &RequestInfo, options: &RequestOptions) -> Result<(), ApiError> {
        let info = narrow_to_name(verb, info, options);
        authorize(&self.user, verb, &info, options, &self.api.inner.node_graph)
            .map_err(|why| forbidden(&self.user, verb, &info, &why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No object has to do with any node.
    struct NoRelations;

    impl Relations for NoRelations {
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
            assert_eq!(decide(&user, &what, &NoRelations).is_ok(), allowed, "{user:?}");
        }
        let slices =
            |verb| Attributes { verb, group: "discovery.k8s.io", resource: "endpointslices", ..Attributes::default() };
        let may = |verb| decide(&UserInfo::node("n1"), &slices(verb), &NoRelations).is_ok();
        assert!(may("list") && may("watch") && !may("get") && !may("create"));
    }

    #[test]
    fn a_list_of_one_name_is_about_that_object() {
        let about = |path: &str, query: &str| {
            let info = RequestInfo::parse(&path.split('/').collect::<Vec<_>>()).unwrap();
            let options = RequestOptions::parse(&format!("/?{query}").parse().unwrap()).unwrap();
            let verb = info.verb(&axum::http::Method::GET, &options).unwrap();
            narrow_to_name(verb, &info, &options).name
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
