//! Which requests a webhook or policy is for: the rules, selectors and versions of both. Pure, but for the store that
//! selectors of namespaces need.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/predicates`, `ShouldCallHook` of `webhook/generic`, and
//! `policy/matching`.

pub(super) mod rules;

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use windlass_apimachinery::selectors::LabelSelector;

use self::rules::{Rule, Subject};
use crate::{
    apiserver::{AdmissionAttributes, ApiError, Operation, types::Version},
    store::{Key, Object, Store},
};

/// The group of what decides on requests.
const GROUP: &str = "admissionregistration.k8s.io";

/// Policies and bindings are decided on by nobody: else one could not be removed any more.
const POLICIES: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Whether neither webhook nor policy sees a request; `others` are resources that decide on requests, too.
pub(super) fn is_exempt(attributes: &AdmissionAttributes<'_>, others: &[&str]) -> bool {
    let version = &attributes.target.version;
    let plural = &*version.plural;
    let decides = version.group == GROUP && (POLICIES.contains(&plural) || others.contains(&plural));
    // What does not exist cannot be deleted, whoever is asked. Objects go with their definition, whatever others say: upstream's
    // finalizer deletes them below admission.
    let is_exempt_deletion = attributes.old.is_none() || (version.terminating && attributes.user.is_api_server());
    decides || (attributes.operation == Operation::Delete && is_exempt_deletion)
}

/// What a webhook, a policy or a binding is for.
#[derive(Debug)]
pub(super) struct Criteria {
    pub(super) namespace_selector: LabelSelector,
    pub(super) object_selector: LabelSelector,
    /// One of them names the resource.
    pub(super) rules: Vec<Rule>,
    /// None of them does.
    pub(super) excluded: Vec<Rule>,
    /// Without rules all resources are named: those of a binding.
    pub(super) is_open: bool,
    pub(super) matches_equivalent: bool,
}

/// A request, as rules and selectors see it.
pub(super) struct Request<'a> {
    pub(super) attributes: &'a AdmissionAttributes<'a>,
    pub(super) object: &'a Value,
    equivalents: OnceLock<Vec<Arc<Version>>>,
}

/// The stored object, if the operation is about one.
pub(super) fn old_of<'a>(attributes: &AdmissionAttributes<'a>) -> Option<&'a Value> {
    attributes.old.filter(|_| matches!(attributes.operation, Operation::Update | Operation::Delete))
}

impl<'a> Request<'a> {
    pub(super) fn new(attributes: &'a AdmissionAttributes<'a>, object: &'a Value) -> Self {
        Self { attributes, object, equivalents: OnceLock::new() }
    }

    /// The name of the object; empty while it has none.
    pub(super) fn name(&self) -> &'a str {
        let target = self.attributes.target;
        target.name.as_deref().or_else(|| self.object["metadata"]["name"].as_str()).unwrap_or("")
    }

    pub(super) fn is_namespace(&self) -> bool {
        self.attributes.is_core("namespaces")
    }

    /// The namespace of the request; of a Namespace its name.
    pub(super) fn namespace(&self) -> &'a str {
        if self.is_namespace() { self.name() } else { self.attributes.target.namespace.as_deref().unwrap_or("") }
    }

    /// The version in which a webhook or policy is shown the object, if it is for the request.
    ///
    /// # Errors
    /// When a rule is for the request, and what its selectors are about cannot be read.
    pub(super) fn version_for(&self, store: &Store, criteria: &Criteria) -> Result<Option<Arc<Version>>, ApiError> {
        let in_namespace = self.is_in_selected_namespace(store, &criteria.namespace_selector);
        if matches!(in_namespace, Ok(false)) || !self.is_selected(&criteria.object_selector) {
            return Ok(None);
        }
        if self.version_of(&criteria.excluded, criteria.matches_equivalent).is_some() {
            return Ok(None);
        }
        let version = if criteria.is_open && criteria.rules.is_empty() {
            Some(Arc::clone(&self.attributes.target.version))
        } else {
            self.version_of(&criteria.rules, criteria.matches_equivalent)
        };
        let Some(version) = version else { return Ok(None) };
        in_namespace?;
        Ok(Some(version))
    }

    fn is_in_selected_namespace(&self, store: &Store, selector: &LabelSelector) -> Result<bool, ApiError> {
        // What is in no namespace is never left out.
        if selector.is_empty() || (self.namespace().is_empty() && !self.is_namespace()) {
            return Ok(true);
        }
        let writes = matches!(self.attributes.operation, Operation::Create | Operation::Update);
        if self.is_namespace() && self.attributes.target.subresource.is_none() && writes {
            return Ok(selector.matches(self.object));
        }
        Ok(selector.matches(&namespace_object(store, self.namespace())?.value()))
    }

    /// Whether the object, as it is or as it would be, has the labels of a selector. What is no object has no labels, and is
    /// only in the selector that everything is in.
    fn is_selected(&self, selector: &LabelSelector) -> bool {
        if selector.is_empty() {
            return true;
        }
        let is_object = self.object.is_object() && self.attributes.operation != Operation::Connect;
        (is_object && selector.matches(self.object)) || old_of(self.attributes).is_some_and(|old| selector.matches(old))
    }

    /// The version in which a rule names the resource: the request's own, or one of the same objects.
    fn version_of(&self, rules: &[Rule], matches_equivalent: bool) -> Option<Arc<Version>> {
        let own = &self.attributes.target.version;
        if rules.iter().any(|rule| rule.matches(&self.subject(own))) {
            return Some(Arc::clone(own));
        }
        if !matches_equivalent || rules.is_empty() {
            return None;
        }
        let equivalents = self.equivalents.get_or_init(|| self.equivalents());
        let matching = |rule: &Rule| equivalents.iter().find(|version| rule.matches(&self.subject(version)));
        rules.iter().find_map(matching).map(Arc::clone)
    }

    fn subject<'b>(&'b self, version: &'b Version) -> Subject<'b> {
        Subject {
            operation: self.attributes.operation,
            group: &version.gvk.group,
            version: &version.gvk.version,
            resource: &version.plural,
            subresource: self.attributes.target.subresource(),
            is_namespaced: !self.is_namespace() && !self.namespace().is_empty(),
            name: self.name(),
        }
    }

    /// The other versions and resources under which the same objects are served. Upstream: `EquivalentResourceMapper`.
    fn equivalents(&self) -> Vec<Arc<Version>> {
        let target = self.attributes.target;
        let Some(id) = target.version.id() else { return Vec::new() };
        let is_other = |version: &&Arc<Version>| version.id() == Some(id) && !Arc::ptr_eq(version, &target.version);
        let has_subresource = |version: &&Arc<Version>| {
            target.subresource.as_deref().is_none_or(|name| version.subresource(name).is_some())
        };
        self.attributes.catalog.all().filter(is_other).filter(has_subresource).cloned().collect()
    }
}

/// A namespace as it is stored.
///
/// # Errors
/// When there is none of this name.
pub(super) fn namespace_object(store: &Store, name: &str) -> Result<Arc<Object>, ApiError> {
    let key = Key { namespace: String::new(), name: name.to_owned() };
    store.get(store.resource("namespaces"), &key).ok_or_else(|| ApiError::not_found_in("", "namespaces", name))
}
