//! The configuration of PodSecurity: the levels of namespaces without labels, and who is exempt
//! (`pod-security.admission.config.k8s.io`). Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::policy::{Level, Policy, Version};
use crate::{
    apiserver::{Errors, aggregate, pipeline::validation::names},
    plugin::admission::configuration::check_fields,
};

const GROUP: &str = "pod-security.admission.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const DEFAULTS: [&str; 6] = ["enforce", "enforce-version", "audit", "audit-version", "warn", "warn-version"];

/// The configuration of the plugin, read at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// Holds where labels say nothing else.
    pub(super) defaults: Policy,
    /// Nothing of these users, runtime classes and namespaces is looked at.
    pub(super) usernames: Vec<String>,
    pub(super) runtime_classes: Vec<String>,
    pub(super) namespaces: Vec<String>,
}

impl Configuration {
    /// Reads a `PodSecurityConfiguration`.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words.
    pub(crate) fn parse(value: &Value) -> Result<Self, String> {
        let (version, kind) = (value["apiVersion"].as_str().unwrap_or(""), value["kind"].as_str().unwrap_or(""));
        let known = version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
        if kind != "PodSecurityConfiguration" || known.is_none_or(|version| !VERSIONS.contains(&version)) {
            return Err(format!("no kind {kind:?} is registered for version {version:?}"));
        }
        check_fields(value, &["apiVersion", "kind", "defaults", "exemptions"])?;
        check_fields(&value["defaults"], &DEFAULTS)?;
        check_fields(&value["exemptions"], &["usernames", "runtimeClasses", "namespaces"])?;
        let mut read = Self { defaults: read_defaults(&value["defaults"])?, ..Self::default() };
        let mut errors = Errors::default();
        let empty = |name: &str| name.is_empty().then(|| "username must not be empty".to_owned());
        read.namespaces = exempt(value, "namespaces", names::label, &mut errors)?;
        read.runtime_classes = exempt(value, "runtimeClasses", names::subdomain, &mut errors)?;
        read.usernames = exempt(value, "usernames", empty, &mut errors)?;
        match aggregate(errors.0.iter().map(ToString::to_string)) {
            Some(all) => Err(format!("PodSecurity invalid: {all}")),
            None => Ok(read),
        }
    }

    /// Whether a namespace is exempt.
    pub(super) fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|exempt| exempt == name)
    }

    /// Whether a pod is exempt by its runtime class.
    pub(super) fn exempts_runtime_class(&self, spec: &Value) -> bool {
        self.runtime_classes.iter().any(|exempt| spec["runtimeClassName"] == *exempt)
    }
}

fn read_defaults(defaults: &Value) -> Result<Policy, String> {
    let mut policy = Policy::default();
    let mut wrong = Vec::new();
    for (name, part) in [("enforce", &mut policy.enforce), ("audit", &mut policy.audit), ("warn", &mut policy.warn)] {
        let text = |name: &str| defaults[name].as_str().filter(|text| !text.is_empty());
        match text(name).map(Level::parse) {
            Some(Ok(level)) => part.level = level,
            Some(Err(why)) => wrong.push(format!("{name}: {why}")),
            None => {}
        }
        let name = format!("{name}-version");
        match text(&name).map(Version::parse) {
            Some(Ok(version)) => part.version = version,
            Some(Err(why)) => wrong.push(format!("{name}: {why}")),
            None => {}
        }
    }
    match aggregate(wrong) {
        Some(all) => Err(format!("PodSecurity configuration error: {all}")),
        None => Ok(policy),
    }
}

/// A list of who is exempt.
fn exempt(
    value: &Value,
    list: &str,
    check: fn(&str) -> Option<String>,
    errors: &mut Errors,
) -> Result<Vec<String>, String> {
    let items = match &value["exemptions"][list] {
        Value::Null => Vec::new(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(|| format!("exemptions.{list} must be texts"))?,
        _ => return Err(format!("exemptions.{list} must be a list")),
    };
    let mut seen = BTreeSet::new();
    for (at, item) in items.iter().enumerate() {
        let path = format!("exemptions.{list}[{at}]");
        if let Some(why) = check(item) {
            errors.invalid_text(path, item, &why);
        } else if !seen.insert(item) {
            errors.duplicate(path, &json!(item));
        }
    }
    Ok(items)
}
