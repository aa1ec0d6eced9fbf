//! The values of variables, and the evaluation of expressions with them.
//!
//! Upstream: `activation.go`, and the lazy map of `composition.go`.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::Value;
use windlass_apimachinery::effort::Effort;
use windlass_cel::{
    Activation, Budget, EvalError, Fields, Opaque, PER_CALL_LIMIT, Program, ResourceAttributes, Value as CelValue,
};

use super::{authorizer::UserAuthorizer, compiler::Composition, types::VARIABLES};

/// What expressions are about.
#[derive(Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) object: &'a Value,
    pub(crate) old: &'a Value,
    /// The review's request without uid and objects.
    pub(crate) request: &'a Value,
    /// The namespace of the object, or null.
    pub(crate) namespace: &'a Value,
    /// The parameters of a policy, or null.
    pub(crate) params: &'a Value,
    /// Messages have none.
    pub(crate) authorizer: Option<&'a UserAuthorizer<'a>>,
    /// What the request itself asks for.
    pub(crate) resource: ResourceAttributes,
    /// What all expressions together may take, if that is less than they may cost.
    pub(crate) effort: Option<&'a EffortCell>,
}

/// An effort that several expressions share.
#[derive(Debug)]
pub(crate) struct EffortCell(Mutex<Effort>);

impl EffortCell {
    pub(super) const fn new(effort: Effort) -> Self {
        Self(Mutex::new(effort))
    }

    /// Whether it was too little: what expressions have given is worthless then.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.lock().is_exceeded()
    }
}

impl Inputs<'_> {
    /// Evaluates a program within what there is left.
    fn evaluate<'v>(&self, program: &Program, scope: &'v Scope<'_>) -> (Result<CelValue<'v>, EvalError>, u64) {
        let mut budget = Budget::new(PER_CALL_LIMIT);
        if let Some(cell) = self.effort {
            budget = budget.within(*cell.0.lock());
        }
        let value = program.evaluate(scope, &mut budget);
        if let Some(cell) = self.effort {
            // Whether it was enough is asked once all are evaluated.
            let _ = cell.0.lock().take(budget.effort());
        }
        (value, budget.spent())
    }
}

/// The variables of one evaluation: what it is about, and the variables of a policy, each of which is evaluated when it is
/// needed, and once.
pub(crate) struct Scope<'a> {
    inputs: &'a Inputs<'a>,
    composition: Option<&'a Composition>,
    cells: Vec<Cell<'a>>,
    /// What the policy's variables have cost since they were last charged for.
    spent: AtomicU64,
    /// This scope, which the values of variables borrow from.
    this: OnceLock<&'a Self>,
}

/// The value of a variable of a policy.
#[derive(Default)]
struct Cell<'a> {
    begun: AtomicBool,
    value: OnceLock<Result<CelValue<'a>, EvalError>>,
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("inputs", self.inputs).finish_non_exhaustive()
    }
}

impl<'a> Scope<'a> {
    /// The variables of conditions of webhooks, or with those of a policy.
    pub(crate) fn new(inputs: &'a Inputs<'a>, composition: Option<&'a Composition>) -> Self {
        let count = composition.map_or(0, Composition::len);
        let cells = (0..count).map(|_| Cell::default()).collect();
        Self { inputs, composition, cells, spent: AtomicU64::new(0), this: OnceLock::new() }
    }

    /// The scope that expressions are evaluated in.
    pub(crate) fn enter(&'a self) -> &'a Self {
        self.this.get_or_init(|| self)
    }

    fn compute(&'a self, name: &str, program: &Result<Program, String>) -> Result<CelValue<'a>, EvalError> {
        let failed = |how: &str, why: &dyn fmt::Display| {
            EvalError::new(format!("composited variable {name:?} fails to {how}: {why}"))
        };
        let program = program.as_ref().map_err(|why| failed("compile", why))?;
        let (value, spent) = self.inputs.evaluate(program, self);
        self.spent.fetch_add(spent, Ordering::Relaxed);
        value.map_err(|why| failed("evaluate", &why))
    }
}

impl Activation for Scope<'_> {
    fn variable(&self, name: &str) -> Option<Result<CelValue<'_>, EvalError>> {
        let inputs = self.inputs;
        Some(Ok(match name {
            "object" => CelValue::from_json(inputs.object),
            "oldObject" => CelValue::from_json(inputs.old),
            "request" => CelValue::from_json(inputs.request),
            "namespaceObject" => CelValue::from_json(inputs.namespace),
            "params" => CelValue::from_json(inputs.params),
            "variables" => CelValue::Lazy(self),
            "authorizer" => CelValue::Opaque(Opaque::authorizer(inputs.authorizer?)),
            "authorizer.requestResource" => {
                CelValue::Opaque(Opaque::request_resource(inputs.authorizer?, inputs.resource.clone()))
            }
            _ => return None,
        }))
    }
}

/// The variable `variables`.
impl Fields for Scope<'_> {
    fn type_name(&self) -> &str {
        VARIABLES
    }

    fn field(&self, name: &str) -> Option<Result<CelValue<'_>, EvalError>> {
        let (at, program) = self.composition?.find(name)?;
        let this = *self.this.get()?;
        let cell = this.cells.get(at)?;
        if let Some(known) = cell.value.get() {
            return Some(known.clone());
        }
        if cell.begun.swap(true, Ordering::Relaxed) {
            return Some(Err(EvalError::new(format!("composited variable {name:?} refers to itself"))));
        }
        Some(cell.value.get_or_init(|| this.compute(name, program)).clone())
    }
}

/// An expression, as it is evaluated.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    /// Or why it cannot be evaluated: one that was stored before it was refused.
    program: Result<Program, String>,
}

/// The value of an expression, or why it has none; nothing if more was spent than there was.
pub(crate) type Evaluated<'a> = Option<Result<CelValue<'a>, String>>;

impl Expression {
    pub(crate) fn new(text: &str, program: Result<Program, String>) -> Self {
        Self { text: text.to_owned(), program }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What is wrong with it.
    pub(crate) fn compile_error(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// Evaluates it, and takes from `left` what that has cost.
    pub(crate) fn evaluate<'a>(&self, scope: &'a Scope<'a>, left: &mut u64) -> Evaluated<'a> {
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => return Some(Err(format!("compilation error: {why}"))),
        };
        let (value, spent) = scope.inputs.evaluate(program, scope);
        *left = left.checked_sub(scope.spent.swap(0, Ordering::Relaxed))?;
        *left = left.checked_sub(spent)?;
        Some(value.map_err(|error| format!("expression '{}' resulted in error: {error}", self.text)))
    }
}
