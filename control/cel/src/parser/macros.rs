//! The macros that Kubernetes has: those of the standard (`parser/macro.go`), of two variables (`ext/comprehensions.go`),
//! of optionals (`cel/library.go`) and `sortBy` (`ext/lists.go`); and `cel.bind` (`ext/bindings.go`), which few environments have.

use super::grammar::Grammar;
use crate::{
    ast::{
        ACCUMULATOR, Call, Comprehension, Entry, Expr, Field, Id, Kind, List, Literal, Select, Struct, UNUSED,
        operators,
    },
    stack,
};

/// The accumulator's name in older versions, which no variable may have either; cel-go's `AccumulatorName`.
const OLD_ACCUMULATOR: &str = "__result__";

/// Which quantifier a macro is.
#[derive(Debug, Clone, Copy)]
enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

/// Why arguments do not fit a macro, and which node is to blame.
type Misuse = (Id, String);
/// What a macro becomes, or its target and arguments if it is none.
type Expansion = Result<Result<Kind, Misuse>, (Option<Box<Expr>>, Vec<Expr>)>;

impl Grammar<'_> {
    /// A call, or what a macro of that name becomes.
    pub(super) fn call_or_macro(&mut self, id: Id, function: &str, target: Option<Expr>, args: Vec<Expr>) -> Expr {
        match self.expand(id, function, target.map(Box::new), args) {
            Ok(Ok(kind)) => Expr { id: self.id_like(id), kind },
            Ok(Err((blame, message))) => self.report_like(blame, message),
            Err((target, args)) => Expr { id, kind: Kind::Call(Call { function: function.to_owned(), target, args }) },
        }
    }

    fn expand(&mut self, id: Id, function: &str, target: Option<Box<Expr>>, args: Vec<Expr>) -> Expansion {
        let Some(target) = target else {
            return match (function, args.len()) {
                ("has", 1) => Ok(has(args)),
                _ => Err((None, args)),
            };
        };
        let quantifier = match function {
            "all" => Some(Quantifier::All),
            "exists" => Some(Quantifier::Exists),
            "exists_one" | "existsOne" => Some(Quantifier::ExistsOne),
            _ => None,
        };
        let binds = self.macros.bind && matches!(&target.kind, Kind::Ident(name) if name == "cel");
        let mut make = Maker { grammar: self, id };
        let made = match (function, quantifier, args.len()) {
            // Of this name there is only the one with two variables.
            ("existsOne", _, 2) => return Err((Some(target), args)),
            (_, Some(quantifier), 2 | 3) => make.quantifier(quantifier, *target, args),
            ("map", _, 2 | 3) | ("filter", _, 2) => make.map(function, *target, args),
            ("transformList" | "transformMap" | "transformMapEntry", _, 3 | 4) => {
                make.transform(function, *target, args)
            }
            ("optMap" | "optFlatMap", _, 2) => make.opt_map(function, *target, args),
            ("sortBy", _, 2) => make.sort_by(*target, args),
            ("bind", _, 3) if binds => make.cel_bind(args),
            _ => return Err((Some(target), args)),
        };
        Ok(made)
    }
}

fn has(args: Vec<Expr>) -> Result<Kind, Misuse> {
    match args.into_iter().next() {
        Some(Expr { kind: Kind::Select(select), .. }) => Ok(Kind::Select(Select { test_only: true, ..select })),
        arg => Err((arg.map_or(0, |arg| arg.id), "invalid argument to has() macro".to_owned())),
    }
}

/// The name of an iteration variable.
fn variable(arg: &Expr, otherwise: &str) -> Result<String, Misuse> {
    match &arg.kind {
        Kind::Ident(name) if name == ACCUMULATOR || name == OLD_ACCUMULATOR => {
            Err((arg.id, "iteration variable overwrites accumulator variable".to_owned()))
        }
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err((arg.id, otherwise.to_owned())),
    }
}

/// The names of two iteration variables.
fn variables(one: &Expr, two: &Expr) -> Result<(String, Option<String>), Misuse> {
    const NO_NAME: &str = "argument must be a simple name";
    let name = |arg: &Expr| match &arg.kind {
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err((arg.id, NO_NAME.to_owned())),
    };
    let (first, second) = (name(one)?, name(two)?);
    if first == second {
        return Err((two.id, format!("duplicate variable name: {first}")));
    }
    Ok((variable(one, NO_NAME)?, Some(variable(two, NO_NAME)?)))
}

/// Makes nodes at the place of the call that a macro stands in for.
struct Maker<'g, 'a> {
    grammar: &'g mut Grammar<'a>,
    id: Id,
}

impl Maker<'_, '_> {
    fn node(&mut self, kind: Kind) -> Expr {
        Expr { id: self.grammar.id_like(self.id), kind }
    }

    fn literal(&mut self, literal: Literal) -> Expr {
        self.node(Kind::Literal(literal))
    }

    fn accumulator(&mut self) -> Expr {
        self.node(Kind::Ident(ACCUMULATOR.to_owned()))
    }

    fn list(&mut self, elements: Vec<Expr>) -> Expr {
        self.node(Kind::List(List { elements, optional: Vec::new() }))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.node(Kind::Call(Call { function: function.to_owned(), target: None, args }))
    }

    fn member_call(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Expr {
        self.node(Kind::Call(Call { function: function.to_owned(), target: Some(Box::new(target)), args }))
    }

    fn quantifier(&mut self, which: Quantifier, range: Expr, mut args: Vec<Expr>) -> Result<Kind, Misuse> {
        let (iter_var, iter_var2) = match &args[..] {
            [one, two, _] => variables(one, two)?,
            [one, ..] => (variable(one, "argument must be a simple name")?, None),
            [] => return Err((self.id, String::new())),
        };
        let predicate = args.pop().unwrap_or(Expr { id: self.id, kind: Kind::Unspecified });
        let (accu_init, condition, step, result);
        match which {
            Quantifier::All => {
                accu_init = self.literal(Literal::Bool(true));
                let so_far = self.accumulator();
                condition = self.call(operators::NOT_STRICTLY_FALSE, vec![so_far]);
                let so_far = self.accumulator();
                step = self.call(operators::AND, vec![so_far, predicate]);
                result = self.accumulator();
            }
            Quantifier::Exists => {
                accu_init = self.literal(Literal::Bool(false));
                let so_far = self.accumulator();
                let not = self.call(operators::NOT, vec![so_far]);
                condition = self.call(operators::NOT_STRICTLY_FALSE, vec![not]);
                let so_far = self.accumulator();
                step = self.call(operators::OR, vec![so_far, predicate]);
                result = self.accumulator();
            }
            Quantifier::ExistsOne => {
                accu_init = self.literal(Literal::Int(0));
                condition = self.literal(Literal::Bool(true));
                let (so_far, one) = (self.accumulator(), self.literal(Literal::Int(1)));
                let more = self.call(operators::ADD, vec![so_far, one]);
                let same = self.accumulator();
                step = self.call(operators::CONDITIONAL, vec![predicate, more, same]);
                let (so_far, one) = (self.accumulator(), self.literal(Literal::Int(1)));
                result = self.call(operators::EQUALS, vec![so_far, one]);
            }
        }
        let accu_var = ACCUMULATOR.to_owned();
        let fold = Comprehension { range, iter_var, iter_var2, accu_var, accu_init, condition, step, result };
        Ok(Kind::Comprehension(Box::new(fold)))
    }

    /// The step of a macro that adds to its result, perhaps only what a filter takes.
    fn filtered(&mut self, filter: Option<Expr>, step: Expr) -> Expr {
        match filter {
            Some(filter) => {
                let same = self.accumulator();
                self.call(operators::CONDITIONAL, vec![filter, step, same])
            }
            None => step,
        }
    }

    /// A loop over a range whose accumulator is a list or a map.
    fn collect(
        &mut self,
        range: Expr,
        (iter_var, iter_var2): (String, Option<String>),
        init: Expr,
        step: Expr,
    ) -> Kind {
        let condition = self.literal(Literal::Bool(true));
        let result = self.accumulator();
        let accu_var = ACCUMULATOR.to_owned();
        let fold = Comprehension { range, iter_var, iter_var2, accu_var, accu_init: init, condition, step, result };
        Kind::Comprehension(Box::new(fold))
    }

    fn map(&mut self, function: &str, range: Expr, mut args: Vec<Expr>) -> Result<Kind, Misuse> {
        let iter_var =
            args.first().ok_or((self.id, String::new())).and_then(|v| variable(v, "argument is not an identifier"))?;
        let last = args.pop();
        let (filter, element) = match function {
            "filter" => (last, args.pop()),
            _ if args.len() == 2 => (args.pop(), last),
            _ => (None, last),
        };
        let init = self.list(Vec::new());
        let so_far = self.accumulator();
        let element = self.list(element.into_iter().collect());
        let step = self.call(operators::ADD, vec![so_far, element]);
        let step = self.filtered(filter, step);
        Ok(self.collect(range, (iter_var, None), init, step))
    }

    fn transform(&mut self, function: &str, range: Expr, mut args: Vec<Expr>) -> Result<Kind, Misuse> {
        let (one, two) = match &args[..] {
            [one, two, ..] => (one, two),
            _ => return Err((self.id, String::new())),
        };
        let names = variables(one, two)?;
        let transform = args.pop();
        let filter = (args.len() == 3).then(|| args.pop()).flatten();
        let so_far = self.accumulator();
        let mut operands = vec![so_far];
        let function = match function {
            "transformList" => {
                operands.push(self.list(transform.into_iter().collect()));
                operators::ADD
            }
            "transformMap" => {
                operands.push(self.node(Kind::Ident(names.0.clone())));
                operands.extend(transform);
                operators::MAP_INSERT
            }
            _ => {
                operands.extend(transform);
                operators::MAP_INSERT
            }
        };
        let step = self.call(function, operands);
        let step = self.filtered(filter, step);
        let init = if function == operators::ADD { self.list(Vec::new()) } else { self.node(Kind::Map(Vec::new())) };
        Ok(self.collect(range, names, init, step))
    }

    /// A variable that an expression can refer to, computed when it does: a loop over nothing.
    fn bind(&mut self, name: &str, value: Expr, result: Expr) -> Kind {
        let range = self.list(Vec::new());
        let condition = self.literal(Literal::Bool(false));
        let step = self.node(Kind::Ident(name.to_owned()));
        let (iter_var, accu_var) = (UNUSED.to_owned(), name.to_owned());
        let accu_init = value;
        let fold = Comprehension { range, iter_var, iter_var2: None, accu_var, accu_init, condition, step, result };
        Kind::Comprehension(Box::new(fold))
    }

    fn cel_bind(&mut self, args: Vec<Expr>) -> Result<Kind, Misuse> {
        match <[Expr; 3]>::try_from(args) {
            Ok([Expr { kind: Kind::Ident(name), .. }, value, result]) => Ok(self.bind(&name, value, result)),
            Ok([other, ..]) => Err((other.id, "cel.bind() variable names must be simple identifiers".to_owned())),
            Err(_) => Err((self.id, String::new())),
        }
    }

    fn opt_map(&mut self, function: &str, target: Expr, mut args: Vec<Expr>) -> Result<Kind, Misuse> {
        let mapped = args.pop();
        let name = match args.pop() {
            Some(Expr { kind: Kind::Ident(name), .. }) => name,
            other => {
                let message = format!("{function}() variable name must be a simple identifier");
                return Err((other.map_or(self.id, |other| other.id), message));
            }
        };
        let copy = self.copy(&target);
        if self.grammar.has_too_many_nodes() {
            return Err((self.id, "expression has too many nodes".to_owned()));
        }
        let has_value = self.member_call("hasValue", target, Vec::new());
        let value = self.member_call("value", copy, Vec::new());
        let mapped = mapped.unwrap_or(Expr { id: self.id, kind: Kind::Unspecified });
        let bound = self.bind(&name, value, mapped);
        let mut some = self.node(bound);
        if function == "optMap" {
            some = self.call("optional.of", vec![some]);
        }
        let none = self.call("optional.none", Vec::new());
        Ok(Kind::Call(Call {
            function: operators::CONDITIONAL.to_owned(),
            target: None,
            args: vec![has_value, some, none],
        }))
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Kind, Misuse> {
        const INPUT: &str = "@__sortBy_input__";
        let fine = matches!(
            target.kind,
            Kind::List(_) | Kind::Select(_) | Kind::Ident(_) | Kind::Comprehension(_) | Kind::Call(_)
        );
        if !fine {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err((target.id, message.to_owned()));
        }
        let range = self.node(Kind::Ident(INPUT.to_owned()));
        let keys = self.map("map", range, args)?;
        let keys = self.node(keys);
        let input = self.node(Kind::Ident(INPUT.to_owned()));
        let sorted = self.member_call(operators::SORT_BY, input, vec![keys]);
        Ok(self.bind(INPUT, target, sorted))
    }

    /// The same nodes with ids of their own; cel-go's `exprHelper.Copy`.
    fn copy(&mut self, expr: &Expr) -> Expr {
        stack::enough(|| self.copy_node(expr))
    }

    fn copy_node(&mut self, expr: &Expr) -> Expr {
        let id = self.grammar.id_like(expr.id);
        let kind = match &expr.kind {
            _ if self.grammar.has_too_many_nodes() => Kind::Unspecified,
            Kind::Unspecified => Kind::Unspecified,
            Kind::Literal(literal) => Kind::Literal(literal.clone()),
            Kind::Ident(name) => Kind::Ident(name.clone()),
            Kind::Select(select) => Kind::Select(Select {
                operand: Box::new(self.copy(&select.operand)),
                field: select.field.clone(),
                test_only: select.test_only,
            }),
            Kind::Call(call) => Kind::Call(Call {
                function: call.function.clone(),
                args: self.copies(&call.args),
                target: call.target.as_ref().map(|target| Box::new(self.copy(target))),
            }),
            Kind::List(list) => {
                Kind::List(List { elements: self.copies(&list.elements), optional: list.optional.clone() })
            }
            Kind::Map(entries) => Kind::Map(
                entries
                    .iter()
                    .map(|entry| Entry {
                        key: self.copy(&entry.key),
                        value: self.copy(&entry.value),
                        optional: entry.optional,
                    })
                    .collect(),
            ),
            Kind::Struct(object) => Kind::Struct(Struct {
                type_name: object.type_name.clone(),
                fields: object
                    .fields
                    .iter()
                    .map(|field| Field {
                        id: self.grammar.id_like(self.id),
                        name: field.name.clone(),
                        value: self.copy(&field.value),
                        optional: field.optional,
                    })
                    .collect(),
            }),
            Kind::Comprehension(fold) => Kind::Comprehension(Box::new(Comprehension {
                range: self.copy(&fold.range),
                accu_init: self.copy(&fold.accu_init),
                condition: self.copy(&fold.condition),
                step: self.copy(&fold.step),
                result: self.copy(&fold.result),
                iter_var: fold.iter_var.clone(),
                iter_var2: fold.iter_var2.clone(),
                accu_var: fold.accu_var.clone(),
            })),
        };
        Expr { id, kind }
    }

    fn copies(&mut self, exprs: &[Expr]) -> Vec<Expr> {
        exprs.iter().map(|expr| self.copy(expr)).collect()
    }
}
