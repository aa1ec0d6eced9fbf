//! What evaluation does, step by step: cel-go's `interpreter/planner.go` with the optimisations that Kubernetes turns on.
//!
//! Which nodes are steps decides what an expression costs: what is constant is computed here and is free, and a chain of
//! selections is one variable with qualifiers.

mod build;
mod fold_constants;

use std::sync::Arc;

pub(crate) use self::fold_constants::{insert as insert_entry, optional_element};
use crate::{
    checker::Checked,
    cost::Cost,
    error::CompileError,
    library::{Function, Regexp},
    value::Value,
};

/// An expression that can be evaluated, on any thread. Cheap to keep and to clone.
#[derive(Debug, Clone)]
pub struct Program {
    plan: Arc<Plan>,
}

/// The steps of an expression.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) root: Node,
    /// How many comprehensions there are, each of which has its variables.
    pub(crate) folds: usize,
}

impl Program {
    pub(crate) fn new(checked: &Checked) -> Result<Self, CompileError> {
        build::build(checked).map(|plan| Self { plan: Arc::new(plan) })
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// A step.
#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Attribute(Box<Attribute>),
    /// `&&`, or `||` if it ends at true.
    Logical {
        ends_at: bool,
        terms: Box<[Node; 2]>,
    },
    /// `==` and `!=`.
    Equal {
        negated: bool,
        args: Box<[Node; 2]>,
    },
    NotStrictlyFalse(Box<Node>),
    Call(Box<Call>),
    /// A function of a regular expression that is written out.
    Regex {
        function: &'static str,
        cost: Cost,
        regex: Regexp,
        args: Box<[Node]>,
    },
    /// `in` a list of scalars that is written out, which is free.
    In {
        element: Box<Node>,
        list: Value<'static>,
    },
    /// `or`, or `orValue`, whose second operand is only evaluated if it is needed.
    Or {
        unwraps: bool,
        args: Box<[Node; 2]>,
    },
    List(Box<[(Node, bool)]>),
    Map(Box<[(Node, Node, bool)]>),
    Struct {
        type_name: Arc<str>,
        fields: Box<[(Arc<str>, Node, bool)]>,
    },
    Fold(Box<Fold>),
}

/// A call of a function.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: &'static Function,
    /// The overload, if the types of arguments say which one it is.
    pub(crate) overload: Option<usize>,
    pub(crate) cost: Cost,
    pub(crate) args: Box<[Node]>,
    /// Both arguments are evaluated, also if the first one has no value.
    pub(crate) is_pair: bool,
    /// The second argument is a regular expression, which is compiled for each call.
    pub(crate) is_regex: bool,
    /// The first argument is the accumulator of this comprehension, which is given up for its next value.
    pub(crate) accumulates: Option<usize>,
    /// What the function does, if it is not in the table.
    pub(crate) inserts: bool,
}

/// A variable, or what another step gives, and the keys, indexes and fields that are selected from it.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) base: Base,
    pub(crate) qualifiers: Vec<Qualifier>,
    /// Whether the last qualifier only asks if it is there.
    pub(crate) test_only: bool,
}

/// What is selected from.
#[derive(Debug)]
pub(crate) enum Base {
    Variable(Box<str>),
    Accumulator(usize),
    /// The first or second variable of a comprehension.
    Iteration {
        fold: usize,
        second: bool,
    },
    Step(Node),
    Conditional(Box<(Node, Attribute, Attribute)>),
}

/// A key, index or field.
#[derive(Debug, Clone)]
pub(crate) struct Qualifier {
    pub(crate) key: Arc<QualifierKey>,
    pub(crate) optional: bool,
    pub(crate) test_only: bool,
}

/// Which key, index or field.
#[derive(Debug)]
pub(crate) enum QualifierKey {
    Const(Value<'static>),
    /// One that is computed, whose last step is free.
    Attribute(Attribute),
    Step(Node),
}

/// A comprehension.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) index: usize,
    pub(crate) range: Node,
    pub(crate) has_two_variables: bool,
    pub(crate) accu_init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}
