//! The policy of the audit log: the first rule that fits a request says how much of it is recorded. Pure.

use serde_json::Value;

use crate::{
    apiserver::{Attributes, AuditLevel, AuditRule, AuditStage, User},
    schema::{ContentType, decode},
};

const API_VERSION: &str = "audit.k8s.io/v1";

/// The rules in their order. What none fits is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    rules: Vec<Rule>,
}

/// Everything at the level `Metadata`: no bodies, which may hold secrets.
impl Default for Policy {
    fn default() -> Self {
        let rule = AuditRule { level: AuditLevel::Metadata, ..AuditRule::default() };
        Self { rules: vec![Rule { rule, ..Rule::default() }] }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    rule: AuditRule,
    /// Empty lists fit all.
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    /// The empty namespace is that of cluster-scoped resources.
    namespaces: Vec<String>,
    paths: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl Policy {
    /// Reads a policy in YAML or JSON.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let policy = decode(text, ContentType::Yaml)?.value;
        if policy["apiVersion"] != API_VERSION || policy["kind"] != "Policy" {
            return Err(format!("it is not of apiVersion {API_VERSION} and kind Policy"));
        }
        check_fields(&policy, "", &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"])?;
        let omit_stages = stages(&policy["omitStages"], "omitStages")?;
        let omit_managed_fields = policy["omitManagedFields"] == true;
        let rules = policy["rules"].as_array().filter(|rules| !rules.is_empty()).ok_or("it has no rules")?;
        let read = |(at, rule): (usize, &Value)| {
            let mut read = read_rule(rule, &format!("rules[{at}]"))?;
            // Those of the policy are left out by every rule.
            read.rule.omit_stages.extend(omit_stages.iter().copied());
            if rule["omitManagedFields"].is_null() {
                read.rule.omit_managed_fields = omit_managed_fields;
            }
            Ok(read)
        };
        Ok(Self { rules: rules.iter().enumerate().map(read).collect::<Result<_, String>>()? })
    }

    /// What is recorded of a request.
    pub(super) fn rule(&self, user: &User, attributes: &Attributes<'_>) -> AuditRule {
        let found = self.rules.iter().find(|rule| rule.fits(user, attributes));
        found.map(|found| found.rule.clone()).unwrap_or_default()
    }
}

impl Rule {
    fn fits(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        let among = |all: &[String], one: &str| all.is_empty() || all.iter().any(|each| each == one);
        if !among(&self.users, &user.name)
            || !(self.groups.is_empty() || self.groups.iter().any(|group| user.groups.contains(group)))
            || !among(&self.verbs, attributes.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return attributes.is_resource
                && among(&self.namespaces, attributes.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|of| of.fits(attributes)));
        }
        if !self.paths.is_empty() {
            return !attributes.is_resource && self.paths.iter().any(|path| path_fits(path, attributes.path));
        }
        true
    }
}

impl GroupResources {
    fn fits(&self, attributes: &Attributes<'_>) -> bool {
        if self.group != attributes.group {
            return false;
        }
        if !self.names.is_empty() && !self.names.iter().any(|name| name == attributes.name) {
            return false;
        }
        let (resource, subresource) = (attributes.resource, attributes.subresource);
        let full = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        self.resources.is_empty()
            || self.resources.iter().any(|wanted| {
                *wanted == full
                    || wanted.strip_prefix("*/").is_some_and(|wanted| !subresource.is_empty() && wanted == subresource)
                    || wanted.strip_suffix("/*").is_some_and(|wanted| wanted == resource)
            })
    }
}

/// Whether a path is meant: `*` is all, a trailing `*` every continuation.
fn path_fits(wanted: &str, path: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => wanted == path,
    }
}

fn read_rule(rule: &Value, at: &str) -> Result<Rule, String> {
    check_fields(
        rule,
        &format!("{at}."),
        &[
            "level",
            "users",
            "userGroups",
            "verbs",
            "resources",
            "namespaces",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ],
    )?;
    let level = match rule["level"].as_str() {
        Some("None") => AuditLevel::None,
        Some("Metadata") => AuditLevel::Metadata,
        Some("Request") => AuditLevel::Request,
        Some("RequestResponse") => AuditLevel::RequestResponse,
        other => {
            let other = other.unwrap_or("");
            return Err(format!("{at}.level must be None, Metadata, Request or RequestResponse, not {other:?}"));
        }
    };
    let list = |field: &str| texts(&rule[field], &format!("{at}.{field}"));
    let mut resources = Vec::new();
    for (i, of) in rule["resources"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.resources[{i}]");
        check_fields(of, &format!("{at}."), &["group", "resources", "resourceNames"])?;
        let group = of["group"].as_str().unwrap_or("").to_owned();
        if group.contains('/') {
            return Err(format!("{at}.group must be a group without a version, not {group:?}"));
        }
        let (kinds, names) = (texts(&of["resources"], &at)?, texts(&of["resourceNames"], &at)?);
        if kinds.is_empty() && !names.is_empty() {
            return Err(format!("{at}.resourceNames needs at least one of resources"));
        }
        resources.push(GroupResources { group, resources: kinds, names });
    }
    let (namespaces, paths) = (list("namespaces")?, list("nonResourceURLs")?);
    let of_resources = !resources.is_empty() || !namespaces.is_empty();
    if !paths.is_empty() && of_resources {
        return Err(format!("{at} cannot have nonResourceURLs and resources or namespaces"));
    }
    for path in &paths {
        let good = path == "*" || path.starts_with('/') && !path.trim_end_matches('*').contains('*');
        if !good {
            return Err(format!("{at}.nonResourceURLs: {path:?} must begin with / and have * at its end only"));
        }
    }
    let omit_managed_fields = rule["omitManagedFields"] == true;
    let omit_stages = stages(&rule["omitStages"], &format!("{at}.omitStages"))?;
    Ok(Rule {
        rule: AuditRule { level, omit_stages, omit_managed_fields },
        users: list("users")?,
        groups: list("userGroups")?,
        verbs: list("verbs")?,
        resources,
        namespaces,
        paths,
    })
}

/// Refuses fields that a policy does not have: a typing error must not widen a rule.
fn check_fields(object: &Value, at: &str, known: &[&str]) -> Result<(), String> {
    let fields = object.as_object().ok_or_else(|| format!("{at} must be an object"))?;
    match fields.keys().find(|field| !known.contains(&field.as_str())) {
        Some(field) => Err(format!("{at}{field} is no field of a policy")),
        None => Ok(()),
    }
}

fn texts(value: &Value, at: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("{at} must be a list of texts");
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(wrong)).collect(),
        _ => Err(wrong()),
    }
}

fn stages(value: &Value, at: &str) -> Result<Vec<AuditStage>, String> {
    let read = |stage: &String| match stage.as_str() {
        "RequestReceived" => Ok(AuditStage::RequestReceived),
        "ResponseStarted" => Ok(AuditStage::ResponseStarted),
        "ResponseComplete" => Ok(AuditStage::ResponseComplete),
        "Panic" => Ok(AuditStage::Panic),
        other => Err(format!(
            "{at} must be of RequestReceived, ResponseStarted, ResponseComplete and Panic, and not {other:?}"
        )),
    };
    texts(value, at)?.iter().map(read).collect()
}
