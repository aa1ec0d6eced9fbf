//! MutatingAdmissionPolicy: policies one after the other, each of which sees what those before it have made of the object.
//!
//! Upstream: `policy/mutating/dispatcher.go`, and `policy/generic/policy_dispatcher.go`.

mod apply_configuration;
mod json_patch;
mod mutator;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use serde_json::Value;
use windlass_apimachinery::{
    group_version::GroupVersion,
    managed_fields::Type,
    schema::{self, Schema},
};

use self::mutator::Mutator;
use super::{
    PolicyContext,
    configuration::{Binding, Hooks, Policies, Policy, hooks_for},
    metrics::error_type,
    policy_matcher::{misconfigured, params_for, shown_namespace, version_for},
    refused,
};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation, types::Version},
    cel::{Inputs, Matches, UserAuthorizer, evaluate},
    kinds::types,
    plugin::{
        admission::webhook::{
            matching::{Matched, Shown, convert, kind_in},
            mutating::{complete, keep_managers},
            review::request_of,
        },
        store_view::StoreView,
    },
};

const NAME: &str = "MutatingAdmissionPolicy";

/// The plugin.
#[derive(Debug)]
pub(crate) struct MutatingAdmissionPolicy {
    policies: StoreView<Policies<Mutator>>,
    context: PolicyContext,
}

impl MutatingAdmissionPolicy {
    pub(crate) fn new(context: PolicyContext) -> Self {
        Self { policies: StoreView::new(context.store.clone()), context }
    }
}

#[async_trait]
impl AdmissionPlugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, operation: Operation) -> bool {
        // A deletion has no object that could be changed.
        matches!(operation, Operation::Create | Operation::Update | Operation::Connect)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let hooks = hooks_for(&self.policies, attributes)?;
        if hooks.is_empty() {
            return Ok(());
        }
        let mut failures = Vec::new();
        let invocations = self.invocations(attributes, object, &hooks, &mut failures).await?;
        if !invocations.is_empty() {
            let before = object.clone();
            attributes.reinvocation.begin(NAME, object);
            let ran = self.run(attributes, object, &invocations, &mut failures).await;
            keep_managers(attributes, &before, object);
            attributes.reinvocation.end(NAME, object);
            ran?;
        }
        refuse(attributes, object, failures)
    }
}

/// A policy with a binding and a parameter, for a request.
struct Invocation {
    policy: Arc<Policy<Mutator>>,
    mutator: Arc<Mutator>,
    binding: Arc<Binding>,
    version: Arc<Version>,
    params: Value,
}

impl Invocation {
    /// Identifies it in both rounds.
    fn key(&self) -> String {
        let metadata = &self.params["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or("");
        format!("{}/{}/{}/{}", self.policy.name, self.binding.name, text("namespace"), text("name"))
    }
}

/// What went wrong with a policy.
#[derive(Debug)]
struct PolicyFailure {
    is_ignored: bool,
    message: String,
    /// The reason of the response; empty for the usual one.
    reason: &'static str,
}

impl PolicyFailure {
    fn new(policy: &Policy<Mutator>, binding: Option<&Binding>, why: &str, reason: &'static str) -> Self {
        let name = &policy.name;
        let message = match binding {
            Some(binding) => format!("policy '{name}' with binding '{}' denied request: {why}", binding.name),
            None => format!("policy {name:?} denied request: {why}"),
        };
        Self { is_ignored: policy.ignores_failures, message, reason }
    }

    fn misconfigured(policy: &Policy<Mutator>, binding: Option<&Binding>, why: &str) -> Self {
        Self::new(policy, binding, &misconfigured(binding.is_some(), why), "")
    }
}

/// Refuses the request if something went wrong that is not ignored.
fn refuse(attributes: &AdmissionAttributes<'_>, object: &Value, failures: Vec<PolicyFailure>) -> Result<(), ApiError> {
    let mut failures = failures.into_iter().filter(|failure| !failure.is_ignored).peekable();
    let Some(first) = failures.peek() else { return Ok(()) };
    let (message, reason) = (first.message.clone(), if first.reason.is_empty() { "Forbidden" } else { first.reason });
    let causes: Vec<String> = failures.map(|failure| failure.message).collect();
    // The code is that of a refusal, whatever the reason is.
    Err(refused(attributes, object, (403, reason.to_owned()), &message, &causes))
}

impl MutatingAdmissionPolicy {
    /// The policies that are for a request, each with its bindings and parameters.
    async fn invocations(
        &self,
        attributes: &AdmissionAttributes<'_>,
        object: &Value,
        hooks: &Hooks<Mutator>,
        failures: &mut Vec<PolicyFailure>,
    ) -> Result<Vec<Invocation>, ApiError> {
        let (store, matched) = (&self.context.store, Matched::new(attributes, object));
        let mut invocations = Vec::new();
        for hook in hooks.iter() {
            let policy = &hook.policy;
            let version = match version_for(store, matched.request(), policy) {
                Ok(Some(version)) => version,
                Ok(None) => continue,
                Err(why) => {
                    failures.push(PolicyFailure::misconfigured(policy, None, &why));
                    continue;
                }
            };
            for binding in &hook.bindings {
                match params_for(store, matched.request(), policy, binding).await {
                    Ok(params) if params.is_empty() => {}
                    Ok(params) => {
                        let mutator = policy.evaluator.get().await?;
                        invocations.extend(params.into_iter().map(|params| Invocation {
                            policy: Arc::clone(policy),
                            mutator: Arc::clone(&mutator),
                            binding: Arc::clone(binding),
                            version: Arc::clone(&version),
                            params,
                        }));
                    }
                    Err(why) => failures.push(PolicyFailure::misconfigured(policy, Some(binding), &why)),
                }
            }
        }
        Ok(invocations)
    }

    /// Changes the object as the policies say.
    async fn run(
        &self,
        attributes: &AdmissionAttributes<'_>,
        object: &mut Value,
        invocations: &[Invocation],
        failures: &mut Vec<PolicyFailure>,
    ) -> Result<(), ApiError> {
        let namespace = shown_namespace(&self.context.store, Matched::new(attributes, object).request())?;
        let mut is_patched = false;
        for invocation in invocations {
            attributes.check_deadline()?;
            let mut call = Call { plugin: self, attributes, invocation, namespace: &namespace };
            if !call.meets_conditions(object, failures).await? {
                continue;
            }
            let key = invocation.key();
            if !attributes.reinvocation.has_turn(NAME, &key) {
                continue;
            }
            let before = object.clone();
            for at in 0..invocation.mutator.mutations.len() {
                is_patched |= !object.is_null() && call.mutate(object, at, failures).await?;
            }
            let is_reinvoked = invocation.mutator.is_reinvoked;
            attributes.reinvocation.called(NAME, &key, is_reinvoked, before != *object);
        }
        if is_patched {
            // As upstream, also when no patch has changed anything.
            attributes.reinvocation.changed(NAME);
        }
        Ok(())
    }
}

/// One policy with one binding and parameter.
struct Call<'a> {
    plugin: &'a MutatingAdmissionPolicy,
    attributes: &'a AdmissionAttributes<'a>,
    invocation: &'a Invocation,
    namespace: &'a Value,
}

impl Call<'_> {
    /// The object in the version of the policy.
    async fn shown(&self, object: &Value) -> Result<Shown, ApiError> {
        Matched::new(self.attributes, object).shown(&self.invocation.version).await
    }

    /// Evaluates with what expressions see of the object.
    async fn with_inputs<T: Send + 'static>(
        &self,
        shown: &Shown,
        with: impl Fn(&Inputs<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self { attributes, invocation, namespace, .. } = self;
        let authorizer = UserAuthorizer { authorizers: &self.plugin.context.authorizers, user: attributes.user };
        let inputs = Inputs {
            object: &shown.object,
            old: &shown.old,
            request: &request_of(attributes, &invocation.version, shown),
            namespace,
            params: &invocation.params,
            authorizer: Some(&authorizer),
            resource: shown.resource(attributes.target),
            effort: None,
        };
        evaluate(invocation.policy.evaluator.owner(), &inputs, with).await
    }

    /// Whether the policy's conditions hold.
    async fn meets_conditions(&self, object: &Value, failures: &mut Vec<PolicyFailure>) -> Result<bool, ApiError> {
        let Invocation { policy, mutator, binding, .. } = self.invocation;
        if mutator.conditions.is_empty() {
            return Ok(true);
        }
        let of = Arc::clone(mutator);
        let matches = move |inputs: &Inputs<'_>| of.conditions.matches(inputs, Some(of.composition()));
        let shown = self.shown(object).await?;
        Ok(match self.with_inputs(&shown, matches).await? {
            Matches::Yes => true,
            Matches::No => false,
            Matches::Unknown(why) => {
                failures.push(PolicyFailure::new(policy, Some(binding), &why, "Invalid"));
                false
            }
        })
    }

    /// Applies a mutation; whether there was something to apply.
    async fn mutate(
        &mut self,
        object: &mut Value,
        at: usize,
        failures: &mut Vec<PolicyFailure>,
    ) -> Result<bool, ApiError> {
        let Invocation { policy, binding, .. } = self.invocation;
        let (names, started) = ([policy.name.as_str(), binding.name.as_str()], Instant::now());
        let made = self.make(object, at).await;
        let metrics = &self.plugin.context.metrics;
        match made {
            Ok(Ok(made)) => {
                *object = made;
                metrics.mutated(names, "no_error", started.elapsed());
                Ok(true)
            }
            Ok(Err(why)) => {
                metrics.mutated(names, error_type(&why), started.elapsed());
                failures.push(PolicyFailure::new(policy, Some(binding), &why, "Invalid"));
                Ok(false)
            }
            Err(error) => {
                metrics.mutated(names, error_type(error.message()), started.elapsed());
                Err(error)
            }
        }
    }

    /// What a mutation makes of the object: an error is what its failure policy is about.
    async fn make(&self, object: &Value, at: usize) -> Result<Result<Value, String>, ApiError> {
        let Self { attributes, invocation, .. } = self;
        let Some(mutation) = invocation.mutator.mutations.get(at) else { return Ok(Ok(object.clone())) };
        let (target, version) = (attributes.target, &invocation.version);
        let shown = self.shown(object).await?;
        let schema = self.schema()?;
        let object_meta = types::schema("meta/v1.ObjectMeta");
        let (mutator, of_type) = (Arc::clone(&invocation.mutator), Arc::clone(&schema));
        let made = self.with_inputs(&shown, move |inputs| {
            let ty = Type::new(&of_type, &object_meta);
            let made = mutator.mutations.get(at).map(|mutation| mutator.apply(mutation, inputs, ty)).transpose()?;
            let made = made.filter(|made| made != inputs.object);
            Ok(made.map(|made| (other_kind(inputs.object, &made), made)))
        });
        let (other, made) = match made.await? {
            Ok(Some(made)) => made,
            Ok(None) => return Ok(Ok(object.clone())),
            Err(why) => return Ok(Err(why)),
        };
        if let Some(other) = other {
            return Err(ApiError::internal(format!("failed to convert object: it may not become a {other}")));
        }
        if mutation.is_json_patch() && version.spec.schema.is_built_in() {
            let unknown = schema::check(&schema, &made, &kind_in(target, version).kind).unknown;
            if !unknown.is_empty() {
                let unknown: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
                return Err(ApiError::internal(format!("strict decoding error: {}", unknown.join(", "))));
            }
        }
        let mut made = convert(&made, target, version, &target.version).await?;
        complete(target, &mut made).map_err(ApiError::internal)?;
        Ok(Ok(made))
    }

    /// The type of what the policy is shown.
    fn schema(&self) -> Result<Arc<Schema>, ApiError> {
        let (target, version) = (self.attributes.target, &self.invocation.version);
        if target.served().is_none_or(|served| served.kind.is_none()) {
            return Ok(Arc::clone(version.spec.schema.node()));
        }
        let kind = kind_in(target, version);
        let named = types::named(&kind.api_version(), &kind.kind);
        named.map(|of| Arc::new(Schema::named(of))).ok_or_else(|| {
            let kind = GroupVersion { group: &kind.group, version: &kind.version }.with_kind(&kind.kind);
            ApiError::service_unavailable(format!(
                "Resource kind {kind} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available."
            ))
        })
    }
}

/// The kind that a patch has given an object, if it is another one.
fn other_kind(object: &Value, made: &Value) -> Option<String> {
    let text = |field: &str| made[field].as_str().unwrap_or("");
    let is_same = ["apiVersion", "kind"].iter().all(|field| made[*field] == object[*field]);
    (!is_same).then(|| format!("{} {}", text("apiVersion"), text("kind")).trim().to_owned())
}
