//! The walk over a checked tree that adds up what its nodes will cost: cel-go's `coster`.

use std::collections::HashMap;

use super::{Cost, CostEstimate, LIST, MAP, SELECT, STRUCT, SizeEstimate, call::Operands};
use crate::{
    ast::{ACCUMULATOR, Call, Comprehension, Expr, Id, Kind, Literal},
    checker::Checked,
    provider::SizeEstimator,
    stack,
    types::Type,
};

/// What a checked expression will cost.
pub(crate) fn estimate(checked: &Checked, sizes: &dyn SizeEstimator) -> CostEstimate {
    let mut walk = Walk {
        checked,
        sizes,
        paths: HashMap::new(),
        locals: Vec::new(),
        computed: HashMap::new(),
        entries: HashMap::new(),
    };
    walk.cost(&checked.root)
}

/// A node as calls look at their operands.
#[derive(Debug, Clone)]
pub(super) struct Node<'e> {
    pub(super) expr: Option<&'e Expr>,
    pub(super) of: &'e Type,
    pub(super) size: Option<SizeEstimate>,
    /// The size of an element, if it is a list.
    element: Option<SizeEstimate>,
}

impl<'e> Node<'e> {
    pub(super) fn size_or_unknown(&self) -> SizeEstimate {
        self.size.unwrap_or(SizeEstimate::UNKNOWN)
    }

    /// The type and size of an element, if it is a list.
    pub(super) fn element(&self) -> Option<(&'e Type, SizeEstimate)> {
        self.of.params().first().map(|of| (of, self.element.unwrap_or(SizeEstimate::UNKNOWN)))
    }
}

/// The sizes of what a list or map holds.
#[derive(Debug, Clone, Copy)]
struct EntrySizes {
    is_list: bool,
    key: SizeEstimate,
    value: SizeEstimate,
}

impl EntrySizes {
    fn union(self, other: Self) -> Self {
        Self { key: self.key.union(other.key), value: self.value.union(other.value), ..self }
    }
}

/// A variable of a comprehension.
#[derive(Debug)]
struct Local<'e> {
    name: &'e str,
    path: Vec<&'e str>,
    size: Option<SizeEstimate>,
    entries: Option<EntrySizes>,
}

struct Walk<'e> {
    checked: &'e Checked,
    sizes: &'e dyn SizeEstimator,
    /// The path from a variable to each node that is reached by one.
    paths: HashMap<Id, Vec<&'e str>>,
    locals: Vec<Local<'e>>,
    computed: HashMap<Id, SizeEstimate>,
    entries: HashMap<Id, EntrySizes>,
}

impl<'e> Walk<'e> {
    fn cost(&mut self, expr: &'e Expr) -> CostEstimate {
        stack::enough(|| self.cost_of(expr))
    }

    fn cost_of(&mut self, expr: &'e Expr) -> CostEstimate {
        match &expr.kind {
            Kind::Unspecified | Kind::Literal(_) => CostEstimate::default(),
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![name.as_str()], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                CostEstimate::fixed(SELECT)
            }
            Kind::Select(select) => {
                let mut sum = self.cost(&select.operand);
                if select.test_only {
                    return sum;
                }
                if matches!(self.type_of(&select.operand), Type::Map(_) | Type::Object(_) | Type::Param(_)) {
                    sum = sum.plus(CostEstimate::fixed(SELECT));
                }
                let mut path = self.path(&select.operand);
                path.push(&select.field);
                self.paths.insert(expr.id, path);
                sum
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(list) => {
                let sum = self.sum(&list.elements);
                let value = self.sizes_of(list.elements.iter());
                let key = SizeEstimate::fixed(1);
                self.entries.insert(expr.id, EntrySizes { is_list: true, key, value });
                sum.plus(CostEstimate::fixed(LIST))
            }
            Kind::Map(entries) => {
                let mut sum = CostEstimate::fixed(MAP);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                }
                let key = self.sizes_of(entries.iter().map(|entry| &entry.key));
                let value = self.sizes_of(entries.iter().map(|entry| &entry.value));
                self.entries.insert(expr.id, EntrySizes { is_list: false, key, value });
                sum
            }
            Kind::Struct(object) => {
                let fields = object.fields.iter();
                fields.fold(CostEstimate::fixed(STRUCT), |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Comprehension(fold) if is_bind(fold) => self.bind(expr, fold),
            Kind::Comprehension(fold) => self.fold(expr, fold),
        }
    }

    fn sum(&mut self, exprs: &'e [Expr]) -> CostEstimate {
        exprs.iter().fold(CostEstimate::default(), |sum, expr| sum.plus(self.cost(expr)))
    }

    /// A size that all of these have.
    fn sizes_of(&mut self, exprs: impl Iterator<Item = &'e Expr>) -> SizeEstimate {
        let sizes = exprs.map(|expr| self.size(expr).unwrap_or(SizeEstimate::UNKNOWN));
        sizes.reduce(SizeEstimate::union).unwrap_or_default()
    }

    fn call(&mut self, expr: &'e Expr, call: &'e Call) -> CostEstimate {
        if call.function == "dyn"
            && let [arg] = &call.args[..]
        {
            let cost = self.cost(arg).plus(CostEstimate::fixed(1));
            self.copy_sizes(expr.id, arg);
            return cost;
        }
        let (mut costs, mut args) = (Vec::with_capacity(call.args.len()), Vec::with_capacity(call.args.len()));
        for arg in &call.args {
            costs.push(self.cost(arg));
            args.push(self.node(arg));
        }
        let Some((function, overloads)) = self.checked.function(expr.id) else { return CostEstimate::default() };
        let (mut sum, mut target) = (CostEstimate::default(), None);
        if let Some(receiver) = &call.target {
            sum = self.cost(receiver);
            target = Some(self.node(receiver));
        }
        let operands = Operands { target: target.as_ref(), args: &args, costs: &costs };
        let mut of_call = CostEstimate { min: u64::MAX, max: 0 };
        let mut size: Option<SizeEstimate> = None;
        for overload in overloads.iter().filter_map(|index| function.overloads.get(*index)) {
            let (cost, result) = operands.estimate(overload.cost);
            of_call = of_call.union(cost);
            self.note_entries(expr, call, overload.cost);
            if let Some(result) = result {
                size = Some(size.map_or(result, |size| size.union(result)));
            }
            let step = match overload.id {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(indexed)) = (step, call.args.first()) {
                size = self.entries_of(indexed).map(|entries| entries.value);
                let mut path = self.path(indexed);
                path.push(step);
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.computed.insert(expr.id, size);
        }
        sum.plus(of_call)
    }

    /// What the result of an operator holds.
    fn note_entries(&mut self, expr: &'e Expr, call: &'e Call, cost: Cost) {
        let (one, other) = match (cost, &call.args[..]) {
            (Cost::Conditional, [_, one, other]) | (Cost::Added | Cost::AddedList, [one, other]) => (one, other),
            _ => return,
        };
        if let (Some(one), Some(other)) = (self.entries_of(one), self.entries_of(other)) {
            self.entries.insert(expr.id, one.union(other));
        }
    }

    fn fold(&mut self, expr: &'e Expr, fold: &'e Comprehension) -> CostEstimate {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.accu_init));
        self.push(&fold.accu_var, &fold.accu_init);
        let depth = self.locals.len();
        match &fold.iter_var2 {
            Some(second) => {
                self.push_iteration(&fold.iter_var, &fold.range, true);
                self.push_iteration(second, &fold.range, false);
            }
            None => {
                let is_list = self.is_list(&fold.range);
                self.push_iteration(&fold.iter_var, &fold.range, !is_list);
            }
        }
        let each = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(depth);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.pop();
        let count = self.size(&fold.range).unwrap_or(SizeEstimate::UNKNOWN);
        sum = sum.plus(count.cost().times(each));
        match fold.accu_init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.accu_init) {
                    self.computed.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.computed.insert(expr.id, count);
                if let Some(entries) = self.entries_of(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum
    }

    fn bind(&mut self, expr: &'e Expr, fold: &'e Comprehension) -> CostEstimate {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.accu_init));
        self.push(&fold.accu_var, &fold.accu_init);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.pop();
        self.copy_sizes(expr.id, &fold.result);
        sum
    }

    fn push(&mut self, name: &'e str, value: &'e Expr) {
        let (path, entries, size) = (self.path(value), self.entries_of(value), self.size(value));
        self.locals.push(Local { name, path, size, entries });
    }

    fn is_list(&self, range: &Expr) -> bool {
        match self.entries_of(range) {
            Some(entries) => entries.is_list,
            None => matches!(self.type_of(range), Type::List(_)),
        }
    }

    /// A variable that goes over the keys, or indexes, or over the values of a range.
    fn push_iteration(&mut self, name: &'e str, range: &'e Expr, is_key: bool) {
        let is_list = self.is_list(range);
        let entries = self.entries_of(range);
        let size = entries.map(|entries| if is_key { entries.key } else { entries.value });
        let mut path = self.path(range);
        path.push(match (is_key, is_list) {
            (true, true) => "@indices",
            (true, false) => "@keys",
            (false, true) => "@items",
            (false, false) => "@values",
        });
        self.locals.push(Local { name, path, size, entries: None });
    }

    fn local(&self, name: &str) -> Option<&Local<'e>> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn type_of(&self, expr: &Expr) -> &'e Type {
        self.checked.type_of(expr.id)
    }

    fn path(&self, expr: &Expr) -> Vec<&'e str> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn node(&mut self, expr: &'e Expr) -> Node<'e> {
        let size = self.size(expr);
        let path = self.path(expr);
        let is_accumulator = path.first().is_some_and(|first| *first == ACCUMULATOR);
        let element = (!path.is_empty() && !is_accumulator).then(|| {
            let mut path = path;
            path.push("@items");
            self.sizes.estimate(&path)
        });
        Node { expr: Some(expr), of: self.type_of(expr), size, element: element.flatten() }
    }

    fn size(&mut self, expr: &'e Expr) -> Option<SizeEstimate> {
        if let Some(size) = self.computed.get(&expr.id) {
            return Some(*size);
        }
        let written = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List(list) => Some(list.elements.len()),
            Kind::Map(entries) => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = written {
            return Some(SizeEstimate::fixed(size as u64));
        }
        if let Some(size) = self.sizes.estimate(&self.path(expr)) {
            self.computed.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.type_of(expr)) {
            return Some(SizeEstimate::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn entries_of(&self, expr: &Expr) -> Option<EntrySizes> {
        if let Some(entries) = self.entries.get(&expr.id) {
            return Some(*entries);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entries),
            _ => None,
        }
    }

    fn copy_sizes(&mut self, to: Id, from: &'e Expr) {
        if let Some(size) = self.size(from) {
            self.computed.insert(to, size);
        }
        if let Some(entries) = self.entries_of(from) {
            self.entries.insert(to, entries);
        }
    }
}

/// A variable that is bound, rather than a loop.
fn is_bind(fold: &Comprehension) -> bool {
    matches!(&fold.range.kind, Kind::List(list) if list.elements.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
}

/// Whether values of a type have one size.
fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        other => other.unwrapped().is_some_and(is_scalar),
    }
}
