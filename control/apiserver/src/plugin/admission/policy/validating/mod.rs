//! ValidatingAdmissionPolicy: the first violation that a binding denies refuses the request; others warn, or are noted in the
//! audit log.
//!
//! Upstream: `policy/validating/dispatcher.go`.

mod validator;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde_json::{Value, json};

use self::validator::{Annotation, Decision, Evaluation, Validator};
use super::{
    PolicyContext,
    configuration::{Binding, Hook, Policies, Policy, hooks_for},
    metrics::error_type,
    policy_matcher::{misconfigured, params_for, shown_namespace, version_for},
    refused,
};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Audit, Operation, types::Version},
    cel::{Inputs, UserAuthorizer, evaluate},
    plugin::{
        admission::webhook::{
            matching::{Matched, Shown},
            review::request_of,
        },
        store_view::StoreView,
    },
};

/// The longest value of an annotation of the audit log, in bytes.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// The plugin.
#[derive(Debug)]
pub(crate) struct ValidatingAdmissionPolicy {
    policies: StoreView<Policies<Validator>>,
    context: PolicyContext,
}

impl ValidatingAdmissionPolicy {
    pub(crate) fn new(context: PolicyContext) -> Self {
        Self { policies: StoreView::new(context.store.clone()), context }
    }
}

#[async_trait]
impl AdmissionPlugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let hooks = hooks_for(&self.policies, attributes)?;
        if hooks.is_empty() {
            return Ok(());
        }
        let mut pass = Pass {
            context: &self.context,
            attributes,
            matched: Matched::new(attributes, object),
            namespace: None,
            denied: Vec::new(),
        };
        for hook in hooks.iter() {
            attributes.check_deadline()?;
            pass.ask(hook).await?;
        }
        match pass.denied.into_iter().next() {
            Some(denied) => Err(denied.refusal(attributes, object)),
            None => Ok(()),
        }
    }
}

/// One request on its way through all policies.
struct Pass<'a> {
    context: &'a PolicyContext,
    attributes: &'a AdmissionAttributes<'a>,
    matched: Matched<'a>,
    /// What expressions see of the namespace, once one needs it.
    namespace: Option<Value>,
    denied: Vec<Denied>,
}

/// Why a request is refused.
#[derive(Debug)]
struct Denied {
    policy: String,
    /// Without one, the policy itself cannot be used.
    binding: Option<String>,
    message: String,
    reason: String,
}

impl Denied {
    fn refusal(self, attributes: &AdmissionAttributes<'_>, object: &Value) -> ApiError {
        let Self { policy, binding, message, reason } = self;
        let with = binding.map_or_else(String::new, |binding| format!(" with binding '{binding}'"));
        let message = format!("ValidatingAdmissionPolicy '{policy}'{with} denied request: {message}");
        let reason = if reason.is_empty() { "Invalid".to_owned() } else { reason };
        let whole = attributes.forbidden(object, &message);
        refused(attributes, object, (code_of(&reason), reason), whole.message(), &[message])
    }
}

/// Upstream: `reasonToCode`.
fn code_of(reason: &str) -> u16 {
    match reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    }
}

impl Pass<'_> {
    /// Asks a policy, for each of its bindings that is for the request.
    async fn ask(&mut self, hook: &Hook<Validator>) -> Result<(), ApiError> {
        let (policy, store) = (&hook.policy, &self.context.store);
        let version = match version_for(store, self.matched.request(), policy) {
            Ok(Some(version)) => version,
            Ok(None) => return Ok(()),
            Err(why) => {
                self.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let mut shown = None;
        let mut annotations = Annotations::default();
        for binding in &hook.bindings {
            let params = match params_for(store, self.matched.request(), policy, binding).await {
                Ok(params) if params.is_empty() => continue,
                Ok(params) => params,
                Err(why) => {
                    self.misconfigured(policy, Some(binding), &why);
                    continue;
                }
            };
            if shown.is_none() {
                match self.matched.shown(&version).await {
                    Ok(now) => shown = Some(now),
                    Err(error) => {
                        let why = format!("failed to convert object version: {}", error.message());
                        self.misconfigured(policy, Some(binding), &why);
                        continue;
                    }
                }
            }
            if self.namespace.is_none() {
                self.namespace = Some(shown_namespace(store, self.matched.request())?);
            }
            if let Some(shown) = &shown {
                self.ask_for(policy, binding, (&version, shown), &params, &mut annotations).await?;
            }
        }
        annotations.publish(&policy.name, self.attributes.audit);
        Ok(())
    }

    fn misconfigured(&mut self, policy: &Policy<Validator>, binding: Option<&Binding>, why: &str) {
        if policy.ignores_failures {
            return;
        }
        self.denied.push(Denied {
            policy: policy.name.clone(),
            binding: binding.map(|binding| binding.name.clone()),
            message: misconfigured(binding.is_some(), why),
            reason: String::new(),
        });
    }

    /// Asks a policy for a binding, with each of its parameters.
    async fn ask_for(
        &mut self,
        policy: &Arc<Policy<Validator>>,
        binding: &Binding,
        (version, shown): (&Version, &Shown),
        params: &[Value],
        annotations: &mut Annotations,
    ) -> Result<(), ApiError> {
        let attributes = self.attributes;
        let request = request_of(attributes, version, shown);
        let authorizer = UserAuthorizer { authorizers: &self.context.authorizers, user: attributes.user };
        let namespace = self.namespace.clone().unwrap_or_default();
        let validator = policy.evaluator.get().await?;
        for params in params {
            let inputs = Inputs {
                object: &shown.object,
                old: &shown.old,
                request: &request,
                namespace: &namespace,
                params,
                authorizer: Some(&authorizer),
                resource: shown.resource(attributes.target),
                effort: None,
            };
            let validator = Arc::clone(&validator);
            let verdict = evaluate(policy.evaluator.owner(), &inputs, move |inputs| validator.validate(inputs)).await?;
            for (at, decision) in verdict.decisions.iter().enumerate() {
                self.settle(policy, binding, (at, decision));
            }
            for annotation in verdict.annotations {
                match annotation {
                    Annotation::Publish { key, value } => annotations.add(key, value),
                    Annotation::Failed { why, took } => {
                        let names = [policy.name.as_str(), binding.name.as_str()];
                        self.context.metrics.checked(names, error_type(&why), "deny", took);
                        self.denied.push(denied(policy, binding, &why, ""));
                    }
                }
            }
        }
        Ok(())
    }

    /// Does what a binding says of a decision.
    fn settle(&mut self, policy: &Policy<Validator>, binding: &Binding, (at, decision): (usize, &Decision)) {
        let names = [policy.name.as_str(), binding.name.as_str()];
        let error = error_type(&decision.message);
        let metrics = &self.context.metrics;
        if !decision.is_violation {
            if decision.evaluation == Evaluation::Failed {
                metrics.checked(names, error, "allow", decision.took);
            }
            return;
        }
        for action in &binding.actions {
            let counted = match action.as_str() {
                "Deny" => {
                    self.denied.push(denied(policy, binding, &decision.message, &decision.reason));
                    "deny"
                }
                "Audit" => {
                    self.attributes
                        .audit
                        .annotate_with("validation.policy.admission.k8s.io/validation_failure", || {
                            failure_note(policy, binding, at, &decision.message)
                        });
                    "audit"
                }
                "Warn" => {
                    let (policy, binding) = (&policy.name, &binding.name);
                    self.attributes.warnings.add(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {}",
                        decision.message
                    ));
                    "warn"
                }
                // Upstream refuses such bindings, as this does when one is written: what is stored so denies.
                unknown => {
                    let why = format!("unrecognized evaluation decision {unknown:?}");
                    self.denied.push(denied(policy, binding, &why, ""));
                    "deny"
                }
            };
            metrics.checked(names, error, counted, decision.took);
        }
    }
}

fn denied(policy: &Policy<Validator>, binding: &Binding, message: &str, reason: &str) -> Denied {
    Denied {
        policy: policy.name.clone(),
        binding: Some(binding.name.clone()),
        message: message.to_owned(),
        reason: reason.to_owned(),
    }
}

/// A violation, as the audit log has it: in the order of upstream's fields.
fn failure_note(policy: &Policy<Validator>, binding: &Binding, at: usize, message: &str) -> String {
    let (policy, binding, actions) = (json!(policy.name), json!(binding.name), json!(binding.actions));
    format!(
        "[{{\"message\":{},\"policy\":{policy},\"binding\":{binding},\"expressionIndex\":{at},\"validationActions\":{actions}}}]",
        json!(message)
    )
}

/// What one policy notes in the audit log, with all bindings and parameters.
#[derive(Debug, Default)]
struct Annotations(BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, key: String, mut value: String) {
        value.truncate(value.floor_char_boundary(MAX_ANNOTATION_BYTES));
        let known = self.0.entry(key).or_default();
        if !known.contains(&value) {
            known.push(value);
        }
    }

    fn publish(&self, policy: &str, audit: &Audit) {
        for (key, values) in &self.0 {
            audit.annotate(&format!("{policy}/{key}"), values.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_of_all_bindings_are_joined_once_each_and_cut() {
        let mut annotations = Annotations::default();
        for value in ["a", "b", "a"] {
            annotations.add("k".to_owned(), value.to_owned());
        }
        annotations.add("long".to_owned(), format!("x{}", "ö".repeat(MAX_ANNOTATION_BYTES)));
        assert_eq!(annotations.0["k"].join(", "), "a, b");
        let long = &annotations.0["long"][0];
        assert_eq!((long.len(), long.chars().last()), (MAX_ANNOTATION_BYTES - 1, Some('ö')));
    }
}
