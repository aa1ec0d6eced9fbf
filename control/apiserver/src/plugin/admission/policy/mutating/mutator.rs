//! What a policy that mutates does, compiled. Pure.
//!
//! Upstream: `policy/mutating/compilation.go`.

use serde_json::Value;
use windlass_apimachinery::managed_fields::Type;
use windlass_cel::{OUT_OF_BUDGET, RUNTIME_COST_BUDGET};

use super::{apply_configuration, json_patch};
use crate::{
    cel::{Compiler, Composition, Conditions, Expression, Inputs, Scope, Wanted},
    plugin::admission::policy::configuration::Evaluator,
};

/// How a mutation is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchType {
    ApplyConfiguration,
    JsonPatch,
}

/// A mutation.
#[derive(Debug)]
pub(super) struct Mutation {
    /// Nothing of one that no known word describes.
    patch: Option<(PatchType, Expression)>,
}

/// A policy, as it is evaluated.
#[derive(Debug)]
pub(in crate::plugin::admission::policy) struct Mutator {
    composition: Composition,
    pub(super) conditions: Conditions,
    pub(super) mutations: Vec<Mutation>,
    /// It sees later changes.
    pub(super) is_reinvoked: bool,
}

impl Mutation {
    pub(super) fn is_json_patch(&self) -> bool {
        self.patch.as_ref().is_some_and(|(kind, _)| *kind == PatchType::JsonPatch)
    }
}

impl Evaluator for Mutator {
    const POLICIES: &'static str = "mutatingadmissionpolicies.admissionregistration.k8s.io";
    const BINDINGS: &'static str = "mutatingadmissionpolicybindings.admissionregistration.k8s.io";

    fn compile(spec: &Value) -> Self {
        let items = |field: &str| spec[field].as_array().into_iter().flatten();
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or("").to_owned();
        let mut compiler = Compiler::new(!spec["paramKind"].is_null(), true);
        compiler.add_variables(&spec["variables"]);
        let mutation = |one: &Value| {
            let (kind, field, wanted) = match one["patchType"].as_str() {
                Some("ApplyConfiguration") => (PatchType::ApplyConfiguration, "applyConfiguration", Wanted::Object),
                Some("JSONPatch") => (PatchType::JsonPatch, "jsonPatch", Wanted::JsonPatch),
                _ => return Mutation { patch: None },
            };
            let expression = compiler.expression(&text(&one[field], "expression"), wanted);
            Mutation { patch: Some((kind, expression)) }
        };
        Self {
            conditions: Conditions::of_policy(&compiler, &spec["matchConditions"]),
            mutations: items("mutations").map(mutation).collect(),
            is_reinvoked: spec["reinvocationPolicy"] == "IfNeeded",
            composition: compiler.into_composition(),
        }
    }
}

impl Mutator {
    /// Its variables.
    pub(super) fn composition(&self) -> &Composition {
        &self.composition
    }

    /// What a mutation makes of the object; `ty` is its type.
    ///
    /// # Errors
    /// Why it makes nothing of it, in upstream's words.
    pub(super) fn apply(&self, mutation: &Mutation, inputs: &Inputs<'_>, ty: Type<'_>) -> Result<Value, String> {
        let Some((kind, expression)) = &mutation.patch else { return Err("policy evaluator is nil".to_owned()) };
        if let Some(why) = expression.compile_error() {
            return Err(why.to_owned());
        }
        let scope = Scope::new(inputs, Some(&self.composition));
        let mut left = RUNTIME_COST_BUDGET;
        let value = expression.evaluate(scope.enter(), &mut left).ok_or(OUT_OF_BUDGET)??;
        match kind {
            PatchType::ApplyConfiguration => apply_configuration::merged(ty, inputs.object, &value),
            PatchType::JsonPatch => json_patch::patched(inputs.object, &value),
        }
    }
}
