//! Which requests a rule of a webhook or policy is for. Pure.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules`.

use serde::Deserialize;
use serde_json::Value;

use crate::apiserver::Operation;

/// What a request is about, as rules see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) operation: Operation,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) resource: &'a str,
    pub(super) subresource: &'a str,
    pub(super) is_namespaced: bool,
    /// The name of the object; empty while it has none.
    pub(super) name: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
}

/// A rule: all of its lists must have what a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resources, each with its subresource, or nothing.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// The names of objects; empty for all. Rules of webhooks have none.
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    operations: Vec<String>,
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    resource_names: Option<Vec<String>>,
}

/// Reads rules.
///
/// # Errors
/// When one is none.
pub(in crate::plugin::admission) fn read_rules(rules: &[Value]) -> Result<Vec<Rule>, String> {
    rules.iter().map(|rule| Stored::deserialize(rule).map_err(|error| error.to_string())?.try_into()).collect()
}

impl TryFrom<Stored> for Rule {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let split = |text: &String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text.clone(), String::new()),
        };
        Ok(Self {
            resources: stored.resources.iter().map(split).collect(),
            operations: stored.operations,
            groups: stored.api_groups,
            versions: stored.api_versions,
            names: stored.resource_names.unwrap_or_default(),
            scope: match stored.scope.as_deref() {
                None | Some("*") => Scope::All,
                Some("Cluster") => Scope::Cluster,
                Some("Namespaced") => Scope::Namespaced,
                Some(other) => return Err(format!("there is no scope {other:?}")),
            },
        })
    }
}

impl Rule {
    /// Whether it is for a request.
    pub(super) fn matches(&self, subject: &Subject<'_>) -> bool {
        let has = |all: &[String], wanted: &str| all.iter().any(|one| one == "*" || one == wanted);
        let is_resource = |(resource, subresource): &(String, String)| {
            (resource == "*" || resource == subject.resource)
                && (subresource == "*" || subresource == subject.subresource)
        };
        self.is_in_scope(subject)
            && has(&self.operations, subject.operation.name())
            && has(&self.groups, subject.group)
            && has(&self.versions, subject.version)
            && self.resources.iter().any(is_resource)
            && (self.names.is_empty() || self.names.iter().any(|name| name == subject.name))
    }

    fn is_in_scope(&self, subject: &Subject<'_>) -> bool {
        match self.scope {
            Scope::All => true,
            Scope::Cluster => !subject.is_namespaced,
            Scope::Namespaced => subject.is_namespaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(operations: &[&str], groups: &[&str], versions: &[&str], resources: &[&str], scope: Value) -> Rule {
        let rule = json!({"operations": operations, "apiGroups": groups, "apiVersions": versions,
            "resources": resources, "scope": scope});
        read_rules(&[rule]).unwrap().remove(0)
    }

    #[test]
    fn a_rule_names_what_it_is_for() {
        let pods = Subject {
            operation: Operation::Create,
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            is_namespaced: true,
            name: "p",
        };
        let exec = Subject { operation: Operation::Connect, subresource: "exec", ..pods };
        let nodes = Subject { resource: "nodes", is_namespaced: false, ..pods };
        let star = ["*"];
        for (rule, of_pods, of_exec, of_nodes) in [
            (rule(&star, &star, &star, &["*/*"], json!("*")), true, true, true),
            (rule(&star, &star, &star, &["*"], Value::Null), true, false, true),
            (rule(&star, &star, &star, &["pods/*"], json!("*")), true, true, false),
            (rule(&star, &star, &star, &["pods/exec"], json!("*")), false, true, false),
            (rule(&star, &star, &star, &["*/exec"], json!("*")), false, true, false),
            (rule(&["CREATE"], &[""], &["v1"], &["pods", "nodes"], json!("*")), true, false, true),
            (rule(&["CREATE"], &["apps"], &star, &["*/*"], json!("*")), false, false, false),
            (rule(&star, &star, &["v2"], &["*/*"], json!("*")), false, false, false),
            (rule(&star, &star, &star, &["*/*"], json!("Cluster")), false, false, true),
            (rule(&star, &star, &star, &["*/*"], json!("Namespaced")), true, true, false),
        ] {
            let found = [pods, exec, nodes].map(|subject| rule.matches(&subject));
            assert_eq!(found, [of_pods, of_exec, of_nodes], "{rule:?}");
        }
    }

    #[test]
    fn a_rule_of_a_policy_may_name_objects() {
        let named = |names: Value| {
            let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
                "resourceNames": names});
            read_rules(&[rule]).unwrap().remove(0)
        };
        let of = |name| Subject {
            operation: Operation::Create,
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            is_namespaced: true,
            name,
        };
        for (names, of_a, of_none) in [
            (Value::Null, true, true),
            (json!([]), true, true),
            (json!(["b", "a"]), true, false),
            (json!(["b"]), false, false),
        ] {
            let rule = named(names);
            assert_eq!((rule.matches(&of("a")), rule.matches(&of(""))), (of_a, of_none), "{rule:?}");
        }
    }

    #[test]
    fn a_scope_that_nobody_knows_is_an_error() {
        let rule = json!({"operations": [], "apiGroups": [], "apiVersions": [], "resources": [], "scope": "Some"});
        assert!(read_rules(&[rule]).is_err());
    }
}
