//! All policies of a kind with their bindings, in the order in which they are evaluated: by their names. Pure.
//!
//! Upstream: `policy/generic/policy_source.go`.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde_json::Value;
use windlass_apimachinery::selectors::LabelSelector;

use crate::{
    apiserver::{AdmissionAttributes, ApiError},
    cel::Deferred,
    plugin::{
        admission::predicates::{self, Criteria, rules::read_rules},
        store_view::{Apply, StoreView, View},
    },
    store::Key,
};

/// Reviews of who somebody is and of what they may do, without which a cluster does not work: upstream's
/// `kubeapiserver/admission/exclusion`.
const REVIEWS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Whether no policy sees a request.
fn is_exempt(attributes: &AdmissionAttributes<'_>) -> bool {
    let version = &attributes.target.version;
    REVIEWS.contains(&(&*version.group, &*version.plural)) || predicates::is_exempt(attributes, &[])
}

/// Whether failures of a policy are as if it were not there. Whatever is no word that lets failures pass does not.
pub(super) fn ignores_failures(spec: &Value) -> bool {
    spec["failurePolicy"] == "Ignore"
}

/// What a policy does, compiled from its `spec`.
pub(super) trait Evaluator: Send + Sync + 'static {
    /// The resource of the policies, as the store names it.
    const POLICIES: &'static str;
    /// That of their bindings.
    const BINDINGS: &'static str;

    /// Compiles a policy. What is wrong with one of its expressions matters when that is evaluated.
    fn compile(spec: &Value) -> Self;
}

/// The kind of a policy's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParamKind {
    pub(super) api_version: String,
    pub(super) kind: String,
}

/// A policy, as it is evaluated.
#[derive(Debug)]
pub(super) struct Policy<E> {
    pub(super) name: String,
    /// Failures are as if it were not there.
    pub(super) ignores_failures: bool,
    /// What it is for, or why nobody knows.
    pub(super) criteria: Result<Criteria, String>,
    pub(super) param_kind: Option<ParamKind>,
    /// Compiled when the first request needs it.
    pub(super) evaluator: Deferred<E>,
}

/// Which parameters a binding names.
#[derive(Debug)]
pub(super) struct ParamRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) selector: Option<Result<LabelSelector, String>>,
    /// Without any, requests are refused.
    pub(super) denies_without: bool,
}

/// A binding of a policy.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) policy: String,
    /// What it is for, if that is less than its policy is for; or why nobody knows.
    pub(super) criteria: Result<Option<Criteria>, String>,
    pub(super) params: Option<ParamRef>,
    /// What follows from a violation, of policies that validate.
    pub(super) actions: Vec<String>,
}

/// A policy with its bindings.
#[derive(Debug)]
pub(super) struct Hook<E> {
    pub(super) policy: Arc<Policy<E>>,
    pub(super) bindings: Vec<Arc<Binding>>,
}

/// All policies that have a binding.
pub(super) type Hooks<E> = Arc<[Hook<E>]>;

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
}

fn criteria(resources: &Value) -> Result<Criteria, String> {
    let selector = |field: &str, what: &str| {
        let selector = &resources[field];
        if selector.is_null() {
            return Err(format!("a nil {what} selector was passed, please ensure selectors are initialized properly"));
        }
        LabelSelector::from_label_selector(selector).map_err(|error| error.to_string())
    };
    let rules = |field: &str| match &resources[field] {
        Value::Null => Ok(Vec::new()),
        Value::Array(rules) => read_rules(rules),
        _ => Err(format!("{field} is no list")),
    };
    Ok(Criteria {
        namespace_selector: selector("namespaceSelector", "namespace")?,
        object_selector: selector("objectSelector", "object")?,
        rules: rules("resourceRules")?,
        excluded: rules("excludeResourceRules")?,
        is_open: true,
        matches_equivalent: resources["matchPolicy"] == "Equivalent",
    })
}

impl<E: Evaluator> Policy<E> {
    fn read(name: &str, policy: &Value) -> Self {
        let spec = &policy["spec"];
        let kind = &spec["paramKind"];
        Self {
            name: name.to_owned(),
            ignores_failures: ignores_failures(spec),
            criteria: match &spec["matchConstraints"] {
                Value::Null => Err("policy contained no match constraints, a required field".to_owned()),
                resources => criteria(resources),
            },
            param_kind: (!kind.is_null())
                .then(|| ParamKind { api_version: text(kind, "apiVersion"), kind: text(kind, "kind") }),
            evaluator: Deferred::new(format!("{}/{name}", E::POLICIES), {
                let spec = spec.clone();
                move || E::compile(&spec)
            }),
        }
    }
}

/// The actions of a binding. What is no text stands here as it is written: an action that nobody knows denies.
fn actions(actions: &Value) -> Vec<String> {
    let text = |action: &Value| action.as_str().map_or_else(|| action.to_string(), str::to_owned);
    match actions {
        Value::Array(actions) if !actions.is_empty() => actions.iter().map(text).collect(),
        none => vec![text(none)],
    }
}

impl Binding {
    fn read(name: &str, binding: &Value) -> Self {
        let spec = &binding["spec"];
        let (resources, reference) = (&spec["matchResources"], &spec["paramRef"]);
        Self {
            name: name.to_owned(),
            policy: text(spec, "policyName"),
            criteria: if resources.is_null() { Ok(None) } else { criteria(resources).map(Some) },
            params: (!reference.is_null()).then(|| ParamRef {
                name: text(reference, "name"),
                namespace: text(reference, "namespace"),
                selector: match &reference["selector"] {
                    Value::Null => None,
                    selector => Some(LabelSelector::from_label_selector(selector).map_err(|error| error.to_string())),
                },
                denies_without: reference["parameterNotFoundAction"] != "Allow",
            }),
            actions: actions(&spec["validationActions"]),
        }
    }
}

/// All policies and bindings of a kind.
pub(super) struct Policies<E> {
    policies: BTreeMap<String, Arc<Policy<E>>>,
    bindings: BTreeMap<String, Arc<Binding>>,
    /// What follows from them, made when it is asked for.
    hooks: OnceLock<Hooks<E>>,
}

impl<E> Default for Policies<E> {
    fn default() -> Self {
        Self { policies: BTreeMap::new(), bindings: BTreeMap::new(), hooks: OnceLock::new() }
    }
}

impl<E: Evaluator> View for Policies<E> {
    const RESOURCES: &'static [(&'static str, Apply<Self>)] =
        &[(E::POLICIES, Self::set_policy), (E::BINDINGS, Self::set_binding)];
}

impl<E: Evaluator> Policies<E> {
    fn set_policy(&mut self, key: &Key, policy: Option<&Value>) {
        match policy {
            Some(policy) => {
                drop(self.policies.insert(key.name.clone(), Arc::new(Policy::read(&key.name, policy))));
            }
            None => drop(self.policies.remove(&key.name)),
        }
        self.hooks = OnceLock::new();
    }

    fn set_binding(&mut self, key: &Key, binding: Option<&Value>) {
        match binding {
            Some(binding) => {
                drop(self.bindings.insert(key.name.clone(), Arc::new(Binding::read(&key.name, binding))));
            }
            None => drop(self.bindings.remove(&key.name)),
        }
        self.hooks = OnceLock::new();
    }

    fn hooks(&self) -> Hooks<E> {
        let made = self.hooks.get_or_init(|| {
            let of = |policy: &Arc<Policy<E>>| {
                let bindings: Vec<Arc<Binding>> =
                    self.bindings.values().filter(|binding| binding.policy == policy.name).cloned().collect();
                // Without a binding it has no effect.
                (!bindings.is_empty()).then(|| Hook { policy: Arc::clone(policy), bindings })
            };
            self.policies.values().filter_map(of).collect()
        });
        Arc::clone(made)
    }
}

/// The policies that a request may concern.
///
/// # Errors
/// When nobody knows them: nothing is admitted then.
pub(super) fn hooks_for<E: Evaluator>(
    policies: &StoreView<Policies<E>>,
    attributes: &AdmissionAttributes<'_>,
) -> Result<Hooks<E>, ApiError> {
    if is_exempt(attributes) {
        return Ok(Arc::from([]));
    }
    let not_ready = || ApiError::new(403, "Forbidden", "not yet ready to handle request");
    policies.read(Policies::hooks).ok_or_else(not_ready)
}
