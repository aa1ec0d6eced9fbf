//! A checked tree to steps.

use std::sync::Arc;

use super::{Attribute, Base, Call, Fold, Node, Plan, Qualifier, QualifierKey, fold_constants as constant};
use crate::{
    ast::{self, ACCUMULATOR, Comprehension, Expr, Kind, operators},
    checker::{Checked, Reference},
    error::{CompileError, EvalError},
    eval::as_key,
    library::{Function, Regexp, is_regex},
    stack,
    types::Type,
    value::Value,
};

/// Plans an expression.
///
/// # Errors
/// A part without variables has no value.
pub(super) fn build(checked: &Checked) -> Result<Plan, CompileError> {
    let mut builder = Builder { checked, scopes: Vec::new(), folds: 0 };
    let root = builder.node(&checked.root).map_err(|error| CompileError::Program(error.message().to_owned()))?;
    Ok(Plan { root, folds: builder.folds })
}

/// A variable of a comprehension.
#[derive(Debug, Clone, Copy)]
enum Local {
    Accumulator(usize),
    Iteration { fold: usize, second: bool },
}

struct Builder<'e> {
    checked: &'e Checked,
    scopes: Vec<(&'e str, Local)>,
    folds: usize,
}

type Built = Result<Node, EvalError>;

impl Attribute {
    const fn new(base: Base) -> Self {
        Self { base, qualifiers: Vec::new(), test_only: false }
    }

    /// Selects from it; of a conditional from each of its branches.
    fn add(&mut self, qualifier: Qualifier) {
        match &mut self.base {
            Base::Conditional(parts) => {
                parts.1.add(qualifier.clone());
                parts.2.add(qualifier);
            }
            _ => self.qualifiers.push(qualifier),
        }
    }
}

impl<'e> Builder<'e> {
    fn node(&mut self, expr: &'e Expr) -> Built {
        stack::enough(|| self.node_of(expr))
    }

    fn node_of(&mut self, expr: &'e Expr) -> Built {
        match &expr.kind {
            Kind::Unspecified => Err(EvalError::new("unsupported expr")),
            Kind::Literal(literal) => Ok(Node::Const(Value::of_literal(literal))),
            Kind::Ident(name) => self.ident(expr, name),
            Kind::Select(select) => {
                let operand = self.node(&select.operand)?;
                let mut attribute = attribute_of(operand);
                let key = Arc::new(QualifierKey::Const(Value::text(select.field.as_str())));
                attribute.add(Qualifier { key, optional: false, test_only: select.test_only });
                attribute.test_only |= select.test_only;
                Ok(Node::Attribute(Box::new(attribute)))
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(list) => {
                let elements = list.elements.iter().enumerate();
                let elements =
                    elements.map(|(index, element)| Ok((self.node(element)?, list.optional.contains(&index))));
                constant::list(elements.collect::<Result<_, EvalError>>()?)
            }
            Kind::Map(entries) => {
                let entries =
                    entries.iter().map(|entry| Ok((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional)));
                constant::map(entries.collect::<Result<_, EvalError>>()?)
            }
            Kind::Struct(object) => {
                let fields = object.fields.iter();
                let fields =
                    fields.map(|field| Ok((field.name.as_str().into(), self.node(&field.value)?, field.optional)));
                let fields = fields.collect::<Result<_, EvalError>>()?;
                Ok(Node::Struct { type_name: object.type_name.as_str().into(), fields })
            }
            Kind::Comprehension(fold) => self.fold(fold),
        }
    }

    fn nodes(&mut self, exprs: impl Iterator<Item = &'e Expr>) -> Result<Vec<Node>, EvalError> {
        exprs.map(|expr| self.node(expr)).collect()
    }

    fn ident(&self, expr: &Expr, name: &str) -> Built {
        let reference = self.checked.reference(expr.id);
        if let Some(Reference::Type(of)) = reference {
            return Ok(Node::Const(Value::Type(of.clone())));
        }
        // As upstream, which takes a variable that holds a type for the name of one.
        if matches!(self.checked.type_of(expr.id), Type::Type(_)) {
            return Err(EvalError::new(format!("reference to undefined type: {name}")));
        }
        let base = match self.scopes.iter().rev().find(|(known, _)| *known == name) {
            Some((_, Local::Accumulator(fold))) => Base::Accumulator(*fold),
            Some((_, Local::Iteration { fold, second })) => Base::Iteration { fold: *fold, second: *second },
            None => Base::Variable(name.into()),
        };
        Ok(Node::Attribute(Box::new(Attribute::new(base))))
    }

    fn call(&mut self, expr: &'e Expr, call: &'e ast::Call) -> Built {
        let (function, overloads) = self
            .checked
            .function(expr.id)
            .ok_or_else(|| EvalError::new(format!("no such overload: {}", call.function)))?;
        let args = self.nodes(call.target.iter().map(AsRef::as_ref).chain(&call.args))?;
        let overload = if let [one] = overloads { Some(*one) } else { None };
        let mut args = args.into_iter();
        let mut next = || args.next().unwrap_or(Node::Const(Value::Null));
        match function.name {
            operators::AND | operators::OR => {
                let ends_at = function.name == operators::OR;
                Ok(Node::Logical { ends_at, terms: Box::new([next(), next()]) })
            }
            operators::CONDITIONAL => {
                let (condition, truthy, falsy) = (next(), next(), next());
                let parts = (condition, branch_of(truthy), branch_of(falsy));
                let attribute = Attribute::new(Base::Conditional(Box::new(parts)));
                Ok(Node::Attribute(Box::new(attribute)))
            }
            operators::EQUALS | operators::NOT_EQUALS => {
                let negated = function.name == operators::NOT_EQUALS;
                Ok(Node::Equal { negated, args: Box::new([next(), next()]) })
            }
            operators::NOT_STRICTLY_FALSE => Ok(Node::NotStrictlyFalse(Box::new(next()))),
            operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT => {
                let (operand, index) = (next(), next());
                indexed(operand, index, function.name != operators::INDEX)
            }
            "or" | "orValue" => Ok(Node::Or { unwraps: function.name == "orValue", args: Box::new([next(), next()]) }),
            _ => self.function_call(function, overload, args.collect()),
        }
    }

    fn function_call(&self, function: &'static Function, overload: Option<usize>, args: Vec<Node>) -> Built {
        let single = overload.and_then(|index| function.overloads.get(index));
        let cost = single.map_or_else(|| function.cost_of_any(), |overload| overload.cost);
        if single.is_some_and(|overload| overload.id == "in_list")
            && let [_, Node::Const(list)] = &args[..]
            && let Some(is_empty) = constant::is_set_of_scalars(list)
        {
            if is_empty {
                return Ok(Node::Const(Value::Bool(false)));
            }
            let mut args = args.into_iter();
            if let (Some(element), Some(Node::Const(list))) = (args.next(), args.next()) {
                return Ok(Node::In { element: Box::new(element), list });
            }
            return Err(EvalError::no_such_overload());
        }
        if let [Node::Const(value)] = &args[..]
            && constant::is_conversion(function.name)
        {
            return function.call(overload, std::slice::from_ref(value)).map(Node::Const);
        }
        if is_regex(function.name)
            && let [_, Node::Const(Value::String(pattern)), ..] = &args[..]
        {
            let regex = Regexp::new(pattern).map_err(EvalError::new)?;
            return Ok(Node::Regex { function: function.name, cost, regex, args: args.into() });
        }
        // Functions without a body of their own for each number of arguments stop at the first error.
        let has_own_body = single.is_some() || self.is_single(function);
        let is_pair = args.len() == 2 && has_own_body && function.name != "format";
        let accumulates = match args.first() {
            Some(Node::Attribute(attribute)) if attribute.qualifiers.is_empty() => match attribute.base {
                Base::Accumulator(fold) if self.is_step_of(fold) => Some(fold),
                _ => None,
            },
            _ => None,
        };
        let inserts = function.name == operators::MAP_INSERT;
        let accumulates = accumulates.filter(|_| inserts || function.name == operators::ADD);
        let is_regex = is_regex(function.name);
        let call = Call { function, overload, cost, args: args.into(), is_pair, is_regex, accumulates, inserts };
        Ok(Node::Call(Box::new(call)))
    }

    fn is_single(&self, function: &Function) -> bool {
        function.overloads.first().is_some_and(crate::library::Overload::is_single)
    }

    /// Whether the accumulator is that of a macro, which refers to it once for each step.
    fn is_step_of(&self, fold: usize) -> bool {
        let innermost = self.scopes.iter().rev().find(|(name, _)| *name == ACCUMULATOR);
        matches!(innermost, Some((_, Local::Accumulator(index))) if *index == fold)
    }

    fn fold(&mut self, fold: &'e Comprehension) -> Built {
        let index = self.folds;
        self.folds += 1;
        let accu_init = self.node(&fold.accu_init)?;
        let range = self.node(&fold.range)?;
        let outside = self.scopes.len();
        // The accumulator hides variables of the same name.
        if let Some(second) = &fold.iter_var2 {
            self.scopes.push((second, Local::Iteration { fold: index, second: true }));
        }
        self.scopes.push((&fold.iter_var, Local::Iteration { fold: index, second: false }));
        self.scopes.push((&fold.accu_var, Local::Accumulator(index)));
        let condition = self.node(&fold.condition)?;
        let step = self.node(&fold.step)?;
        self.scopes.truncate(outside);
        self.scopes.push((&fold.accu_var, Local::Accumulator(index)));
        let result = self.node(&fold.result)?;
        self.scopes.truncate(outside);
        let has_two_variables = fold.iter_var2.is_some();
        Ok(Node::Fold(Box::new(Fold { index, range, has_two_variables, accu_init, condition, step, result })))
    }
}

/// What is selected from a step.
fn attribute_of(node: Node) -> Attribute {
    match node {
        Node::Attribute(attribute) if !attribute.test_only => *attribute,
        other => Attribute::new(Base::Step(other)),
    }
}

/// A branch of a conditional, of which the last step is free if it is an attribute.
fn branch_of(node: Node) -> Attribute {
    match node {
        Node::Attribute(attribute) => Attribute { test_only: false, ..*attribute },
        other => Attribute::new(Base::Step(other)),
    }
}

fn indexed(operand: Node, index: Node, optional: bool) -> Built {
    let mut attribute = attribute_of(operand);
    let key = match index {
        Node::Const(value) => QualifierKey::Const(as_key(value)?),
        Node::Attribute(index) => QualifierKey::Attribute(*index),
        other => QualifierKey::Step(other),
    };
    attribute.add(Qualifier { key: Arc::new(key), optional, test_only: false });
    Ok(Node::Attribute(Box::new(attribute)))
}
