//! What a rule allows, and whether rules cover others. Pure.

use std::fmt;

use serde_json::Value;

use crate::apiserver::{Attributes, NonResourceRule, ResourceRule, Rules};

const ALL: &str = "*";

/// The rules of a Role or ClusterRole.
pub(crate) fn of_role(role: &Value) -> Rules {
    let mut rules = Rules::default();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let texts = |field: &str| -> Vec<String> {
            rule[field].as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let paths = texts("nonResourceURLs");
        if paths.is_empty() {
            rules.resource.push(ResourceRule {
                verbs: texts("verbs"),
                groups: texts("apiGroups"),
                resources: texts("resources"),
                names: texts("resourceNames"),
            });
        } else {
            rules.non_resource.push(NonResourceRule { verbs: texts("verbs"), paths });
        }
    }
    rules
}

/// Whether rules allow a request (upstream: `rbac.RulesAllow`).
pub(crate) fn allows(rules: &Rules, what: &Attributes<'_>) -> bool {
    if what.is_resource {
        rules.resource.iter().any(|rule| allows_resource(rule, what))
    } else {
        rules.non_resource.iter().any(|rule| has(&rule.verbs, what.verb) && allows_path(&rule.paths, what.path))
    }
}

fn has(all: &[String], one: &str) -> bool {
    all.iter().any(|each| each == ALL || each == one)
}

fn allows_resource(rule: &ResourceRule, what: &Attributes<'_>) -> bool {
    has(&rule.verbs, what.verb)
        && has(&rule.groups, what.group)
        && rule.resources.iter().any(|each| is_resource(each, what.resource, what.subresource))
        && (rule.names.is_empty() || rule.names.iter().any(|name| name == what.name))
}

/// Whether a rule's resource is this one: `*`, `RESOURCE`, `RESOURCE/SUBRESOURCE` or `*/SUBRESOURCE` (upstream:
/// `ResourceMatches`). Access reviews may name both in `resource`; operators do.
fn is_resource(rule: &str, resource: &str, subresource: &str) -> bool {
    let after = |of: &str| rule.strip_prefix(of).and_then(|rest| rest.strip_prefix('/'));
    rule == ALL
        || if subresource.is_empty() {
            rule == resource
        } else {
            after(resource) == Some(subresource) || after(ALL) == Some(subresource)
        }
}

fn allows_path(paths: &[String], path: &str) -> bool {
    paths.iter().any(|each| match each.strip_suffix('*') {
        Some(base) => path.starts_with(base),
        None => each == path,
    })
}

/// Verbs on one resource, object or path: what a rule is broken down into to be compared with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant<'a> {
    scope: Scope<'a>,
    verbs: Vec<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope<'a> {
    /// Group, resource and name (empty for all).
    Resource([&'a str; 3]),
    Path(&'a str),
}

/// As Go shows upstream's `PolicyRule`, which is how clients read it in the error of an escalation.
impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            Scope::Resource([group, resource, name]) => {
                write!(f, "{{APIGroups:[{group:?}], Resources:[{resource:?}], ")?;
                if !name.is_empty() {
                    write!(f, "ResourceNames:[{name:?}], ")?;
                }
            }
            Scope::Path(path) => write!(f, "{{NonResourceURLs:[{path:?}], ")?,
        }
        let verbs: Vec<String> = self.verbs.iter().map(|verb| format!("{verb:?}")).collect();
        write!(f, "Verbs:[{}]}}", verbs.join(" "))
    }
}

/// What of `wanted` the rules do not give, verbs on the same scope together (upstream: `validation.Covers`,
/// `validation.CompactRules`).
pub(crate) fn uncovered<'a>(held: &Rules, wanted: &'a Rules) -> Vec<Grant<'a>> {
    let mut missing: Vec<Grant<'a>> = Vec::new();
    let mut add = |scope: Scope<'a>, verb: &'a str| match missing.iter_mut().find(|grant| grant.scope == scope) {
        Some(grant) if grant.verbs.contains(&verb) => {}
        Some(grant) => grant.verbs.push(verb),
        None => missing.push(Grant { scope, verbs: vec![verb] }),
    };
    for rule in &wanted.resource {
        for scope in resource_scopes(rule) {
            for verb in rule.verbs.iter().filter(|verb| !held.resource.iter().any(|each| gives(each, scope, verb))) {
                add(Scope::Resource(scope), verb);
            }
        }
    }
    for rule in &wanted.non_resource {
        for path in &rule.paths {
            let given = |verb: &str| {
                held.non_resource.iter().any(|each| has(&each.verbs, verb) && covers_path(&each.paths, path))
            };
            for verb in rule.verbs.iter().filter(|verb| !given(verb)) {
                add(Scope::Path(path), verb);
            }
        }
    }
    missing
}

/// Each group, resource and name of a rule.
fn resource_scopes(rule: &ResourceRule) -> Vec<[&str; 3]> {
    let names: Vec<&str> =
        if rule.names.is_empty() { vec![""] } else { rule.names.iter().map(String::as_str).collect() };
    let mut scopes = Vec::new();
    for group in &rule.groups {
        for resource in &rule.resources {
            scopes.extend(names.iter().map(|name| [group.as_str(), resource.as_str(), *name]));
        }
    }
    scopes
}

fn gives(rule: &ResourceRule, [group, resource, name]: [&str; 3], verb: &str) -> bool {
    has(&rule.verbs, verb)
        && has(&rule.groups, group)
        && rule.resources.iter().any(|each| covers_resource(each, resource))
        && (rule.names.is_empty() || (!name.is_empty() && rule.names.iter().any(|each| each == name)))
}

/// Whether a rule's resource stands for all that another one stands for.
fn covers_resource(held: &str, wanted: &str) -> bool {
    let all_subresources =
        || held.strip_prefix("*/").is_some_and(|sub| wanted.split_once('/').is_some_and(|(_, other)| sub == other));
    held == ALL || held == wanted || all_subresources()
}

fn covers_path(held: &[String], wanted: &str) -> bool {
    held.iter()
        .any(|each| each == ALL || each == wanted || each.strip_suffix('*').is_some_and(|b| wanted.starts_with(b)))
}
