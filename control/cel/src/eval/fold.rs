//! Comprehensions: cel-go's `evalFold`. The accumulator's first value is computed when it is first needed.

use super::{Evaluator, is_cancelled};
use crate::{
    decl::ListKind,
    error::EvalError,
    plan::{Fold, Node},
    value::{List, Map, Opaque, Outcome, Value},
};

/// The variables of a comprehension that runs.
#[derive(Debug, Default)]
pub(super) struct Frame<'x, 'a> {
    /// How the accumulator's first value is computed, until it is.
    pending: Option<&'x Node>,
    accumulator: Option<Outcome<'a>>,
    first: Option<Outcome<'a>>,
    second: Option<Outcome<'a>>,
}

/// What a variable is outside of its comprehension, where no expression can name it.
fn unset<'a>() -> Outcome<'a> {
    Err(EvalError::new("no such attribute(s)"))
}

impl<'x, 'a> Evaluator<'x, 'a> {
    pub(super) fn accumulator(&mut self, fold: usize) -> Outcome<'a> {
        self.initialize(fold)?;
        self.frames.get(fold).and_then(|frame| frame.accumulator.clone()).unwrap_or_else(unset)
    }

    /// As `accumulator`, which then has no value until it gets its next one.
    pub(super) fn take_accumulator(&mut self, fold: usize) -> Outcome<'a> {
        self.initialize(fold)?;
        self.frames.get_mut(fold).and_then(|frame| frame.accumulator.take()).unwrap_or_else(unset)
    }

    fn initialize(&mut self, fold: usize) -> Result<(), EvalError> {
        let Some(pending) = self.frames.get_mut(fold).and_then(|frame| frame.pending.take()) else { return Ok(()) };
        let value = self.eval(pending);
        if is_cancelled(&value) {
            return value.map(|_| ());
        }
        self.set_accumulator(fold, value);
        Ok(())
    }

    fn set_accumulator(&mut self, fold: usize, value: Outcome<'a>) {
        if let Some(frame) = self.frames.get_mut(fold) {
            frame.pending = None;
            frame.accumulator = Some(value);
        }
    }

    pub(super) fn iteration(&self, fold: usize, second: bool) -> Outcome<'a> {
        let frame = self.frames.get(fold);
        let variable = frame.and_then(|frame| if second { frame.second.clone() } else { frame.first.clone() });
        variable.unwrap_or_else(unset)
    }

    pub(super) fn fold(&mut self, fold: &'x Fold) -> Outcome<'a> {
        let range = self.eval(&fold.range)?;
        if let Some(frame) = self.frames.get_mut(fold.index) {
            *frame = Frame { pending: Some(&fold.accu_init), ..Frame::default() };
        }
        let done = self.iterate(fold, &range);
        let result = done.and_then(|()| self.eval(&fold.result));
        if let Some(frame) = self.frames.get_mut(fold.index) {
            *frame = Frame::default();
        }
        result
    }

    fn iterate(&mut self, fold: &'x Fold, range: &Value<'a>) -> Result<(), EvalError> {
        match range {
            Value::List(list) => {
                for (index, element) in list.iter().enumerate() {
                    let goes_on = if fold.has_two_variables {
                        let index = Value::Int(i64::try_from(index).unwrap_or(i64::MAX));
                        self.iteration_step(fold, Ok(index), Some(element))?
                    } else {
                        self.iteration_step(fold, element, None)?
                    };
                    if !goes_on {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                for key in map.keys() {
                    let value = fold.has_two_variables.then(|| map.find(&key).unwrap_or_else(unset));
                    if !self.iteration_step(fold, Ok(key), value)? {
                        break;
                    }
                }
                Ok(())
            }
            other if fold.has_two_variables => {
                Err(EvalError::new(format!("unsupported comprehension range type: {}", go_type(other))))
            }
            other => Err(EvalError::new(format!("got '{}', expected iterable type", go_type(other)))),
        }
    }

    /// One step; false if there is no further one.
    fn iteration_step(
        &mut self,
        fold: &'x Fold,
        first: Outcome<'a>,
        second: Option<Outcome<'a>>,
    ) -> Result<bool, EvalError> {
        if let Some(frame) = self.frames.get_mut(fold.index) {
            frame.first = Some(first);
            frame.second = second;
        }
        match self.eval(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(why) if why.is_cancelled() => return Err(why),
            // An error of the condition does not end the loop.
            _ => {}
        }
        let next = self.eval(&fold.step);
        if let Err(why) = &next
            && why.is_cancelled()
        {
            return Err(why.clone());
        }
        self.set_accumulator(fold.index, next);
        Ok(true)
    }
}

/// Go's name of the type of a value, in errors.
pub(super) fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Duration(_) => "types.Duration",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        Value::List(List::Typed(typed)) => match typed.kind() {
            ListKind::Atomic => "*common.unstructuredList",
            ListKind::Set => "*common.unstructuredSetList",
            ListKind::Map(_) => "*common.unstructuredMapList",
        },
        Value::List(_) => "*types.baseList",
        Value::Map(Map::Typed(..)) => "*common.unstructuredMap",
        Value::Map(_) => "*types.baseMap",
        Value::Struct(_) => "*dynamic.ObjectVal",
        Value::Opaque(Opaque::Quantity(_)) => "cel.Quantity",
        Value::Opaque(Opaque::Url(_)) => "cel.URL",
        Value::Opaque(Opaque::Ip(_)) => "cel.IP",
        Value::Opaque(Opaque::Cidr(_)) => "cel.CIDR",
        Value::Opaque(Opaque::Semver(_)) => "cel.Semver",
        Value::Opaque(Opaque::Format(_)) => "cel.Format",
        Value::Opaque(_) => "library.authorizerVal",
        Value::Lazy(_) => "*lazy.MapValue",
        Value::Unknown(_) => "*common.unknownPreserved",
    }
}
