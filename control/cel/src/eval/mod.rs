//! Evaluation: cel-go's `interpreter/interpretable.go`, which charges as it goes and ends when the budget is spent.
//!
//! Errors are values of operands, which logical operators and comprehensions absorb; that the budget is spent is not.

mod attribute;
mod fold;

use std::sync::Arc;

use windlass_apimachinery::effort::Effort;

pub(crate) use self::attribute::as_key;
use self::fold::Frame;
use crate::{
    cost::{self, Cost},
    error::EvalError,
    library::call_regex,
    plan::{Call, Node, Program, insert_entry, optional_element},
    provider::Activation,
    stack,
    value::{self, Key, Map, Outcome, OwnedMap, Struct, Value},
};

/// Deeper nesting of steps than any expression has that the parser takes, copies of macros aside.
const MAX_DEPTH: u32 = 1200;

/// What evaluation may cost, and has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    limit: u64,
    spent: u64,
    /// For what takes longer than it costs in upstream's units.
    effort: Effort,
    all_effort: u64,
}

/// What one evaluation may cost, at most; upstream's `PerCallLimit`.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What all rules of a schema may cost for one object, and all expressions of a policy for one request; upstream's
/// `RuntimeCELCostBudget`.
pub const RUNTIME_COST_BUDGET: u64 = 10_000_000;
/// What one evaluation may take, whatever it costs: regular expressions that it makes and applies, texts that grow. Upstream has
/// no such limit, and goes on.
pub(crate) const PER_CALL_EFFORT: u64 = 50_000_000;
/// Bytes of a text that are written in one unit of effort.
const BYTES_PER_UNIT: u64 = 64;
/// The longest text that a function makes, in bytes; objects have three millions at most.
pub(crate) const MAX_TEXT: usize = 32 << 20;
/// Why nothing more is evaluated: what was evaluated has cost more than all may.
pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

impl Budget {
    /// A budget of so many units.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, spent: 0, effort: Effort::new(PER_CALL_EFFORT), all_effort: PER_CALL_EFFORT }
    }

    /// The same with what is left of an effort, if that is less than one evaluation may take.
    #[must_use]
    pub const fn within(self, effort: Effort) -> Self {
        if effort.left() >= PER_CALL_EFFORT {
            return self;
        }
        Self { effort: Effort::new(effort.left()), all_effort: effort.left(), ..self }
    }

    /// The effort that evaluation took; more than there is, if there was too little.
    #[must_use]
    pub const fn effort(&self) -> u64 {
        if self.effort.is_exceeded() { u64::MAX } else { self.all_effort - self.effort.left() }
    }

    /// What was spent, also of an evaluation that was ended.
    #[must_use]
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// Takes back what was charged for a step that turned out to be free.
    const fn refund(&mut self, cost: u64) {
        self.spent = self.spent.saturating_sub(cost);
    }

    /// Spends of it.
    ///
    /// # Errors
    /// More is spent than there was.
    pub fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.charge_alone(cost)?;
        self.take(cost)
    }

    /// The same of what takes no longer than one step, such as the question of what a user may do.
    fn charge_alone(&mut self, cost: u64) -> Result<(), EvalError> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.limit { Err(EvalError::cost_limit()) } else { Ok(()) }
    }

    /// Takes an effort, beyond what is charged.
    pub(crate) fn take(&mut self, effort: u64) -> Result<(), EvalError> {
        if self.effort.take(effort) { Ok(()) } else { Err(EvalError::cost_limit()) }
    }

    /// Ends evaluation before a step that costs too much.
    fn check(&mut self, cost: u64) -> Result<(), EvalError> {
        let left = self.limit.saturating_sub(self.spent).min(self.effort.left());
        if cost > left { self.charge(cost) } else { Ok(()) }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(PER_CALL_LIMIT)
    }
}

impl Program {
    /// The expression's value for these variables.
    ///
    /// # Errors
    /// cel-go's words for why there is none.
    pub fn evaluate<'a>(
        &self,
        activation: &'a (impl Activation + ?Sized),
        budget: &mut Budget,
    ) -> Result<Value<'a>, EvalError> {
        self.evaluate_dyn(&Adapter(activation), budget)
    }

    fn evaluate_dyn<'a>(&self, variables: &dyn Variables<'a>, budget: &mut Budget) -> Outcome<'a> {
        let plan = self.plan();
        let frames: Vec<Frame<'_, 'a>> = (0..plan.folds).map(|_| Frame::default()).collect();
        Evaluator { variables, budget, frames, depth: 0 }.eval(&plan.root)
    }
}

/// An activation that lives as long as the values.
trait Variables<'a> {
    fn get(&self, name: &str) -> Option<Outcome<'a>>;
}

struct Adapter<'a, A: ?Sized>(&'a A);

impl<'a, A: Activation + ?Sized> Variables<'a> for Adapter<'a, A> {
    fn get(&self, name: &str) -> Option<Outcome<'a>> {
        self.0.variable(name)
    }
}

struct Evaluator<'x, 'a> {
    variables: &'x dyn Variables<'a>,
    budget: &'x mut Budget,
    /// The variables of each comprehension.
    frames: Vec<Frame<'x, 'a>>,
    depth: u32,
}

impl<'x, 'a> Evaluator<'x, 'a> {
    fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.budget.charge(cost)
    }

    /// Charges for a step, whatever it gave, unless evaluation has ended.
    fn charged(&mut self, outcome: Outcome<'a>, cost: u64) -> Outcome<'a> {
        if !is_cancelled(&outcome) {
            self.charge(cost)?;
        }
        outcome
    }

    fn eval(&mut self, node: &'x Node) -> Outcome<'a> {
        if self.depth >= MAX_DEPTH {
            return Err(EvalError::too_deep());
        }
        self.depth += 1;
        let outcome = stack::enough(|| self.step(node));
        self.depth -= 1;
        outcome
    }

    fn step(&mut self, node: &'x Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attribute(attribute) => self.attribute(attribute),
            Node::Logical { ends_at, terms } => self.logical(*ends_at, terms),
            Node::Equal { negated, args } => self.equality(*negated, args),
            Node::NotStrictlyFalse(operand) => {
                let value = self.eval(operand);
                if is_cancelled(&value) {
                    return value;
                }
                self.charge(1)?;
                Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false)))))
            }
            Node::Call(call) => self.call(call),
            Node::Regex { function, cost, regex, args } => {
                let args = self.args(args, *cost)?;
                let result = regex.call(function, &args, self.budget);
                let cost = cost.actual(&args, result.as_ref().ok());
                self.charged(result, cost)
            }
            Node::In { element, list } => {
                let element = self.eval(element)?;
                crate::library::in_aggregate(&[element, list.clone()])
            }
            Node::Or { unwraps, args } => match self.eval(&args[0])? {
                Value::Optional(Some(value)) if *unwraps => Ok(Value::clone(&value)),
                Value::Optional(None) => self.eval(&args[1]),
                other => Ok(other),
            },
            Node::List(elements) => {
                let list = self.list(elements);
                self.charged(list, cost::LIST)
            }
            Node::Map(entries) => {
                let map = self.map(entries);
                self.charged(map, cost::MAP)
            }
            Node::Struct { type_name, fields } => {
                let object = self.object(type_name, fields);
                self.charged(object, cost::STRUCT)
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    /// `&&` and `||`: a term that decides makes errors of others not matter.
    fn logical(&mut self, ends_at: bool, terms: &'x [Node; 2]) -> Outcome<'a> {
        let mut error = None;
        for term in terms {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == ends_at => return Ok(Value::Bool(ends_at)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => error = error.or_else(|| Some(EvalError::no_such_overload())),
                Err(why) if why.is_cancelled() => return Err(why),
                Err(why) => error = error.or(Some(why)),
            }
        }
        error.map_or(Ok(Value::Bool(!ends_at)), Err)
    }

    /// Both operands of an operator, of which both are evaluated. An error is charged for as a value of size one.
    fn pair(&mut self, args: [&'x Node; 2], cost: Cost) -> Result<[Value<'a>; 2], EvalError> {
        let left = self.eval(args[0]);
        if let Err(why) = &left
            && why.is_cancelled()
        {
            return Err(why.clone());
        }
        let right = self.eval(args[1]);
        match (left, right) {
            (Ok(left), Ok(right)) => Ok([left, right]),
            (_, Err(why)) if why.is_cancelled() => Err(why),
            (left, right) => {
                if right.is_err() {
                    unexpected(cost, 1)?;
                }
                let shown = [left.clone().unwrap_or(Value::Null), right.clone().unwrap_or(Value::Null)];
                self.charge(cost.actual(&shown, None))?;
                left.and(right).map(|_| [Value::Null, Value::Null])
            }
        }
    }

    fn equality(&mut self, negated: bool, args: &'x [Node; 2]) -> Outcome<'a> {
        let cost = if negated { Cost::Compared } else { Cost::Equals };
        let [left, right] = self.pair([&args[0], &args[1]], cost)?;
        let same = value::equal(&left, &right);
        self.charge(cost.actual(&[left, right], None))?;
        if negated { Ok(Value::Bool(!same.unwrap_or(false))) } else { same.map(Value::Bool) }
    }

    /// All arguments of a function, up to the first that has no value.
    fn args(&mut self, args: &'x [Node], cost: Cost) -> Result<Vec<Value<'a>>, EvalError> {
        let mut values = Vec::with_capacity(args.len());
        for (index, arg) in args.iter().enumerate() {
            match self.eval(arg) {
                Ok(value) => values.push(value),
                Err(why) => {
                    // What stands last has been evaluated as all others have, and is charged for.
                    if index + 1 == args.len() && !why.is_cancelled() {
                        unexpected(cost, index)?;
                        values.push(Value::Null);
                        self.charge(cost.actual(&values, None))?;
                    }
                    return Err(why);
                }
            }
        }
        Ok(values)
    }

    fn call(&mut self, call: &'x Call) -> Outcome<'a> {
        if let Some(fold) = call.accumulates {
            return self.accumulate(call, fold);
        }
        let args = match &call.args[..] {
            [left, right] if call.is_pair => self.pair([left, right], call.cost)?.to_vec(),
            args => self.args(args, call.cost)?,
        };
        if call.cost == Cost::AuthorizationCheck {
            let result = call.function.call(call.overload, &args);
            self.budget.charge_alone(call.cost.actual(&args, result.as_ref().ok()))?;
            return result;
        }
        // What costs too much is not begun, where that is known before.
        let known = (!call.cost.is_of_result()).then(|| call.cost.actual(&args, None));
        self.budget.check(known.unwrap_or(1))?;
        let result = match &args[..] {
            [Value::String(text), Value::String(pattern), rest @ ..] if call.is_regex => {
                call_regex(call.function.name, (text, pattern), rest, self.budget)
            }
            args => call.function.call(call.overload, args),
        };
        if let Ok(Value::String(text)) = &result {
            self.budget.take(text.len() as u64 / BYTES_PER_UNIT)?;
        }
        let cost = known.unwrap_or_else(|| call.cost.actual(&args, result.as_ref().ok()));
        self.charged(result, cost)
    }

    /// Adds to the accumulator of a comprehension, which nothing else refers to, in place.
    fn accumulate(&mut self, call: &'x Call, fold: usize) -> Outcome<'a> {
        let so_far = self.take_accumulator(fold);
        let so_far = self.charged(so_far, cost::SELECT);
        if is_cancelled(&so_far) {
            return so_far;
        }
        let rest = match so_far {
            Err(why) if !call.is_pair => return Err(why),
            _ if call.is_pair => self.eval(&call.args[1]).map(|added| vec![added]),
            _ => self.args(&call.args[1..], Cost::One),
        };
        let (so_far, rest) = match (so_far, rest) {
            (_, Err(why)) if why.is_cancelled() => return Err(why),
            (Ok(so_far), Ok(rest)) => (so_far, rest),
            (so_far, rest) => {
                if call.is_pair {
                    self.charge(1)?;
                }
                return so_far.and(rest.map(|_| Value::Null));
            }
        };
        if call.inserts {
            let inserted = insert_all(so_far, &rest);
            return self.charged(inserted, 1);
        }
        let [added] = &rest[..] else { return Err(EvalError::no_such_overload()) };
        // Of a list only that it grows is charged for, not how long it is.
        let is_list = matches!(so_far, Value::List(_));
        let cost = if is_list { 1 } else { call.cost.actual(&[so_far.clone(), added.clone()], None) };
        let sum = value::add(so_far, added);
        self.charged(sum, cost)
    }

    fn list(&mut self, elements: &'x [(Node, bool)]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            let value = self.eval(element)?;
            if *optional {
                values.extend(optional_element(value)?);
            } else {
                values.push(value);
            }
        }
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &'x [(Node, Node, bool)]) -> Outcome<'a> {
        let mut map = OwnedMap::default();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            insert_entry(&mut map, &key, value, *optional)?;
        }
        Ok(Value::Map(Map::Owned(Arc::new(map))))
    }

    fn object(&mut self, type_name: &Arc<str>, fields: &'x [(Arc<str>, Node, bool)]) -> Outcome<'a> {
        let mut values: Vec<(Arc<str>, Value<'a>)> = Vec::with_capacity(fields.len());
        for (name, value, optional) in fields {
            let value = match self.eval(value)? {
                value if !optional => value,
                Value::Optional(Some(value)) => Value::clone(&value),
                Value::Optional(None) => continue,
                other => {
                    let shown = other.go_print();
                    let message = format!("cannot initialize optional entry '{name}' from non-optional value {shown}");
                    return Err(EvalError::new(message));
                }
            };
            values.push((Arc::clone(name), value));
        }
        Ok(Value::Struct(Arc::new(Struct { type_name: Arc::clone(type_name), fields: values })))
    }
}

/// That an argument has no value, where upstream's cost tracker relies on one.
fn unexpected(cost: Cost, index: usize) -> Result<(), EvalError> {
    let message = match (cost, index) {
        (Cost::Distinct | Cost::Sort | Cost::SortTexts, _) => "*types.Err is not traits.Lister: missing method Add",
        (Cost::Flatten, 1) => "ref.Val is *types.Err, not types.Int",
        _ => return Ok(()),
    };
    Err(EvalError::internal(&format!("interface conversion: {message}")))
}

/// Whether evaluation has ended.
fn is_cancelled(outcome: &Outcome<'_>) -> bool {
    outcome.as_ref().is_err_and(EvalError::is_cancelled)
}

/// Adds a key and a value, or all entries of a map, whose keys must not be there yet.
fn insert_all<'a>(map: Value<'a>, added: &[Value<'a>]) -> Outcome<'a> {
    let Value::Map(Map::Owned(mut entries)) = map else { return Err(EvalError::no_such_overload()) };
    let mut insert = |key: &Value<'a>, value: Value<'a>| {
        if Map::Owned(Arc::clone(&entries)).find(key).is_some() {
            return Err(EvalError::new(format!("insert failed: key {} already exists", key.go_print())));
        }
        let name = key.type_of();
        let key = Key::of(key).ok_or_else(|| EvalError::new(format!("unsupported key type: {}", name.name())))?;
        Arc::make_mut(&mut entries).insert(key, value);
        Ok(())
    };
    match added {
        [key, value] => insert(key, value.clone())?,
        [Value::Map(more)] => {
            for key in more.keys() {
                let value = more.find(&key).ok_or_else(|| EvalError::no_such_key(key.go_print()))??;
                insert(&key, value)?;
            }
        }
        [other] => {
            let types = format!("map, {}", other.type_of().name());
            return Err(EvalError::new(format!("no such overload: cel.@mapInsert({types})")));
        }
        _ => return Err(EvalError::no_such_overload()),
    }
    Ok(Value::Map(Map::Owned(entries)))
}
