//! The types of a tree's nodes: cel-go's `checker/checker.go`.

mod assign;
mod calls;
mod literals;
mod validate;

use std::collections::HashMap;

use self::assign::Assignments;
use crate::{
    ast::{Comprehension, Expr, Id, Kind, Literal, Select},
    environment::Environment,
    library::Function,
    parser::Positions,
    source::{Errors, Source},
    stack,
    types::Type,
};

/// What a node refers to.
#[derive(Debug, Clone)]
pub(crate) enum Reference {
    /// A variable, by its full name, or one of a comprehension.
    Variable(Box<str>),
    /// A type, as a value.
    Type(Type),
    /// A function, and which of its overloads take the arguments.
    Function(&'static Function, Box<[usize]>),
}

/// A tree whose names are resolved and whose nodes have types.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) root: Expr,
    types: Vec<Type>,
    references: HashMap<Id, Reference>,
}

impl Checked {
    /// The type of a node.
    pub(crate) fn type_of(&self, id: Id) -> &Type {
        self.types.get(id as usize).unwrap_or(&Type::Dyn)
    }

    /// What a node refers to.
    pub(crate) fn reference(&self, id: Id) -> Option<&Reference> {
        self.references.get(&id)
    }

    /// The function that a node calls.
    pub(crate) fn function(&self, id: Id) -> Option<(&'static Function, &[usize])> {
        match self.references.get(&id)? {
            Reference::Function(function, overloads) => Some((function, overloads)),
            _ => None,
        }
    }

    /// Whether a node refers to a variable.
    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.references.values().any(|reference| matches!(reference, Reference::Variable(name) if **name == *variable))
    }
}

/// Finds the types of all nodes.
///
/// # Errors
/// What cel-go says of the expression.
pub(crate) fn check(
    environment: &Environment,
    source: &Source<'_>,
    root: Expr,
    positions: &Positions,
) -> Result<Checked, Errors> {
    let mut checker = Checker {
        environment,
        source,
        positions,
        errors: Errors::default(),
        types: vec![None; positions.count() + 1],
        references: HashMap::new(),
        scopes: Vec::new(),
        assignments: Assignments::default(),
    };
    let mut root = root;
    checker.check(&mut root);
    if !checker.errors.is_empty() {
        return Err(checker.errors);
    }
    let Checker { types, references, assignments, mut errors, .. } = checker;
    let types = types.into_iter().map(|of| of.map_or(Type::Dyn, |of| assignments.resolved(&of))).collect();
    let checked = Checked { root, types, references };
    validate::validate(&checked, source, positions, &mut errors);
    if errors.is_empty() { Ok(checked) } else { Err(errors) }
}

struct Checker<'a> {
    environment: &'a Environment,
    source: &'a Source<'a>,
    positions: &'a Positions,
    errors: Errors,
    types: Vec<Option<Type>>,
    references: HashMap<Id, Reference>,
    /// The variables of comprehensions around, the innermost last.
    scopes: Vec<(String, Type)>,
    assignments: Assignments,
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: impl Into<String>) {
        self.errors.report(|| self.positions.location(id, self.source), message);
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn set_type(&mut self, id: Id, of: Type) {
        if let Some(slot) = self.types.get_mut(id as usize) {
            *slot = Some(of);
        }
    }

    fn type_of(&self, id: Id) -> Type {
        self.types.get(id as usize).cloned().flatten().unwrap_or(Type::Error)
    }

    /// The type of a variable, whose name may begin with a dot, and what it refers to.
    fn lookup(&self, name: &str) -> Option<(Type, Reference)> {
        let name = name.strip_prefix('.').unwrap_or(name);
        let variable = || Reference::Variable(name.into());
        if let Some((_, of)) = self.scopes.iter().rev().find(|(known, _)| known == name) {
            return Some((of.clone(), variable()));
        }
        let of = self.environment.ident(name)?;
        let reference = match &of {
            Type::Type(named) => Reference::Type(Type::clone(named)),
            _ => variable(),
        };
        Some((of, reference))
    }

    fn check(&mut self, expr: &mut Expr) {
        stack::enough(|| self.check_node(expr));
    }

    fn check_node(&mut self, expr: &mut Expr) {
        let id = expr.id;
        match &mut expr.kind {
            Kind::Unspecified => self.set_type(id, Type::Error),
            Kind::Literal(literal) => self.set_type(id, type_of_literal(literal)),
            Kind::Ident(name) => match self.lookup(name) {
                Some((of, reference)) => {
                    self.set_type(id, of);
                    self.references.insert(id, reference);
                    if let Some(bare) = name.strip_prefix('.') {
                        *name = bare.to_owned();
                    }
                }
                None => {
                    let name = name.clone();
                    self.set_type(id, Type::Error);
                    self.undeclared(id, &name);
                }
            },
            Kind::Select(_) => self.check_select(expr),
            Kind::Call(_) => self.check_call(expr),
            Kind::List(list) => self.check_list(id, list),
            Kind::Map(entries) => self.check_map(id, entries),
            Kind::Struct(object) => self.check_struct(id, object),
            Kind::Comprehension(fold) => self.check_comprehension(id, fold),
        }
    }

    fn check_select(&mut self, expr: &mut Expr) {
        let id = expr.id;
        // A whole name with dots may be a variable.
        if let Some(name) = expr.qualified_name()
            && let Some((of, reference)) = self.lookup(&name)
        {
            self.set_type(id, of);
            self.references.insert(id, reference);
            expr.kind = Kind::Ident(name.strip_prefix('.').unwrap_or(&name).to_owned());
            return;
        }
        let Kind::Select(Select { operand, field, test_only }) = &mut expr.kind else { return };
        let (field, test_only) = (field.clone(), *test_only);
        let of = self.check_field(id, operand, &field, false);
        let of = if test_only { Type::Bool } else { self.assignments.substituted(&of) };
        self.set_type(id, of);
    }

    /// The type of a field of an operand.
    fn check_field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let of = self.assignments.substituted(&self.type_of(operand.id));
        let unwrapped = of.unwrapped().cloned();
        let is_optional = unwrapped.is_some();
        let target = unwrapped.unwrap_or(of);
        let result = match &target {
            Type::Map(types) => types.1.clone(),
            Type::Object(name) => self.field(id, name, field).unwrap_or(Type::Error),
            Type::Param(_) => {
                self.assignments.assign(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Any | Type::Error => Type::Dyn,
            other => {
                self.report(id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(result) } else { result }
    }

    /// The type of a field, or a report that there is none.
    fn field(&mut self, id: Id, type_name: &str, field: &str) -> Option<Type> {
        if self.environment.find_type(type_name).is_none() {
            self.report(id, format!("unexpected failed resolution of '{type_name}'"));
            return None;
        }
        let found = self.environment.find_field(type_name, field);
        if found.is_none() {
            self.report(id, format!("undefined field '{field}'"));
        }
        found
    }

    fn check_comprehension(&mut self, id: Id, fold: &mut Comprehension) {
        self.check(&mut fold.range);
        self.check(&mut fold.accu_init);
        let range = self.assignments.substituted(&self.type_of(fold.range.id));
        let accu = self.type_of(fold.accu_init.id);
        let outside = self.scopes.len();
        self.scopes.push((fold.accu_var.clone(), accu.clone()));
        let (first, second) = match &range {
            Type::List(element) if fold.iter_var2.is_some() => (Type::Int, Type::clone(element)),
            Type::List(element) => (Type::clone(element), Type::Error),
            Type::Map(types) => (types.0.clone(), types.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.assignments.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        self.scopes.push((fold.iter_var.clone(), first));
        if let Some(name) = &fold.iter_var2 {
            self.scopes.push((name.clone(), second));
        }
        self.check(&mut fold.condition);
        self.expect(fold.condition.id, &Type::Bool);
        self.check(&mut fold.step);
        self.expect(fold.step.id, &accu);
        self.scopes.truncate(outside + 1);
        self.check(&mut fold.result);
        self.scopes.truncate(outside);
        let result = self.assignments.substituted(&self.type_of(fold.result.id));
        self.set_type(id, result);
    }

    /// Reports a node that is not of a type.
    fn expect(&mut self, id: Id, wanted: &Type) {
        let found = self.type_of(id);
        if !self.assignments.assign(wanted, &found) {
            self.mismatch(id, wanted, &found);
        }
    }
}

const fn type_of_literal(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}
