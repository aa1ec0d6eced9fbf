//! Authorization: a chain of authorizers decides on requests and on access reviews alike.

use std::{fmt, sync::Arc};

use crate::apiserver::request::{attributes::Attributes, error::ApiError, user::User};

/// An authorizer's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed, whatever others think.
    Allow,
    /// The request is denied, whatever others think, with the reason.
    Deny(String),
    /// Other authorizers decide; the reason is reported if none allows the request.
    NoOpinion(String),
}

/// What a user may do to resources of a namespace; `*` stands for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// API groups.
    pub groups: Vec<String>,
    /// Plural names, with the subresource after a slash.
    pub resources: Vec<String>,
    /// Names of objects; empty for all.
    pub names: Vec<String>,
}

/// What a user may do to paths that are no resources; a path may end in `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonResourceRule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// Paths.
    pub paths: Vec<String>,
}

/// The rules by which an authorizer decides for a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// About resources.
    pub resource: Vec<ResourceRule>,
    /// About other paths.
    pub non_resource: Vec<NonResourceRule>,
    /// Why there are more than can be listed; empty when these are all.
    pub unresolved: Vec<String>,
}

/// Decides what users may do. Synchronous: it decides by what it knows.
pub trait Authorizer: Send + Sync + fmt::Debug {
    /// Decides on one request.
    fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Why it allows a request that it allows, for reviews and the audit log: not asked for on every request.
    fn reason(&self, _: &User, _: &Attributes<'_>) -> String {
        String::new()
    }

    /// What a user may do in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> Rules;
}

/// Asks several authorizers in turn.
#[derive(Debug, Clone, Default)]
pub struct Authorizers(Vec<Arc<dyn Authorizer>>);

impl Authorizers {
    /// The authorizers in the order in which they are asked.
    pub(crate) fn new(all: Vec<Arc<dyn Authorizer>>) -> Self {
        Self(all)
    }

    /// Whether the user may.
    ///
    /// # Errors
    /// Why not; often empty.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), String> {
        let mut reasons = Vec::new();
        for authorizer in &self.0 {
            match authorizer.decide(user, attributes) {
                Decision::Allow => return Ok(()),
                Decision::Deny(why) => return Err(why),
                Decision::NoOpinion(why) => reasons.extend((!why.is_empty()).then_some(why)),
            }
        }
        Err(reasons.join("\n"))
    }

    /// Why the user may, by the authorizer that allows it; often empty.
    pub(crate) fn reason(&self, user: &User, attributes: &Attributes<'_>) -> String {
        let allows = |authorizer: &&Arc<dyn Authorizer>| authorizer.decide(user, attributes) == Decision::Allow;
        self.0.iter().find(allows).map_or_else(String::new, |authorizer| authorizer.reason(user, attributes))
    }

    /// What the user may do in a namespace, by the rules of all authorizers.
    pub(crate) fn rules(&self, user: &User, namespace: &str) -> Rules {
        self.0.iter().map(|authorizer| authorizer.rules(user, namespace)).fold(Rules::default(), |mut all, more| {
            all.resource.extend(more.resource);
            all.non_resource.extend(more.non_resource);
            all.unresolved.extend(more.unresolved);
            all
        })
    }
}

/// Allows everything to the members of groups.
#[derive(Debug)]
pub struct PrivilegedGroups(pub Vec<&'static str>);

impl PrivilegedGroups {
    fn has(&self, user: &User) -> bool {
        self.0.iter().any(|group| user.is_in(group))
    }
}

impl Authorizer for PrivilegedGroups {
    fn decide(&self, user: &User, _: &Attributes<'_>) -> Decision {
        if self.has(user) { Decision::Allow } else { Decision::NoOpinion(String::new()) }
    }

    fn rules(&self, user: &User, _: &str) -> Rules {
        if !self.has(user) {
            return Rules::default();
        }
        let all = || vec!["*".to_owned()];
        Rules {
            resource: vec![ResourceRule { verbs: all(), groups: all(), resources: all(), names: Vec::new() }],
            non_resource: vec![NonResourceRule { verbs: all(), paths: all() }],
            unresolved: Vec::new(),
        }
    }
}

/// The error of a request that is not authorized, as upstream's.
pub(crate) fn forbidden(user: &User, attributes: &Attributes<'_>, why: &str) -> ApiError {
    let Attributes { verb, group, resource, subresource, namespace, name, .. } = *attributes;
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    if !attributes.is_resource {
        let message = format!("forbidden: User {:?} cannot {verb} path {:?}{why}", user.name, attributes.path);
        return ApiError::new(403, "Forbidden", message);
    }
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let full = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
    let message = format!("User {:?} cannot {verb} resource \"{full}\" in API group {group:?} {place}{why}", user.name);
    let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let subject = if name.is_empty() { qualified } else { format!("{qualified} {name:?}") };
    ApiError::new(403, "Forbidden", format!("{subject} is forbidden: {message}")).of_resource(group, resource, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(Decision);

    impl Authorizer for Fixed {
        fn decide(&self, _: &User, _: &Attributes<'_>) -> Decision {
            self.0.clone()
        }

        fn rules(&self, _: &User, _: &str) -> Rules {
            Rules::default()
        }
    }

    #[test]
    fn the_first_opinion_counts() {
        let (allow, deny) = (Decision::Allow, Decision::Deny("no".to_owned()));
        let none = |why: &str| Decision::NoOpinion(why.to_owned());
        for (decisions, decided) in [
            (vec![], Err(String::new())),
            (vec![none(""), allow.clone(), deny.clone()], Ok(())),
            (vec![none("a"), deny, allow], Err("no".to_owned())),
            (vec![none("a"), none(""), none("b")], Err("a\nb".to_owned())),
        ] {
            let all =
                Authorizers::new(decisions.into_iter().map(|d| Arc::new(Fixed(d)) as Arc<dyn Authorizer>).collect());
            assert_eq!(all.authorize(&User::anonymous(), &Attributes::default()), decided);
        }
    }

    #[test]
    fn messages_are_upstreams() {
        let user = User { name: "eve".to_owned(), ..User::default() };
        let resource = Attributes {
            verb: "get",
            is_resource: true,
            group: "apps",
            resource: "x",
            namespace: "n",
            name: "a",
            ..Attributes::default()
        };
        assert_eq!(
            forbidden(&user, &resource, "why").to_string(),
            "x.apps \"a\" is forbidden: User \"eve\" cannot get resource \"x\" in API group \"apps\" in the namespace \"n\": why"
        );
        let path = Attributes { verb: "get", path: "/debug", ..Attributes::default() };
        assert_eq!(forbidden(&user, &path, "").to_string(), "forbidden: User \"eve\" cannot get path \"/debug\"");
    }
}
