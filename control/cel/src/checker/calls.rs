//! Which overloads of a function take the arguments of a call.

use super::{Checker, Reference};
use crate::{
    ast::{Expr, Id, Kind, Literal, operators},
    library::Function,
    types::Type,
};

impl Checker<'_> {
    pub(super) fn check_call(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Call(call) = &mut expr.kind else { return };
        if call.function == operators::OPT_SELECT {
            self.check_optional_select(expr);
            return;
        }
        for arg in &mut call.args {
            self.check(arg);
        }
        let args: Vec<Id> = call.args.iter().map(|arg| arg.id).collect();
        let Some(target) = &mut call.target else {
            let Some(function) = self.environment.function(&call.function) else {
                let name = call.function.clone();
                self.set_type(id, Type::Error);
                self.undeclared(id, &name);
                return;
            };
            function.name.clone_into(&mut call.function);
            self.resolve(id, function, None, &args);
            return;
        };
        // `a.b.c()` may be the function of that name, or `c` of `a.b`.
        let qualified = target.qualified_name().map(|prefix| format!("{prefix}.{}", call.function));
        if let Some(function) = qualified.and_then(|name| self.environment.function(&name)) {
            function.name.clone_into(&mut call.function);
            call.target = None;
            self.resolve(id, function, None, &args);
            return;
        }
        self.check(target);
        let target = target.id;
        match self.environment.function(&call.function) {
            Some(function) => self.resolve(id, function, Some(target), &args),
            None => {
                let name = call.function.clone();
                self.set_type(id, Type::Error);
                self.undeclared(id, &name);
            }
        }
    }

    fn check_optional_select(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Call(call) = &mut expr.kind else { return };
        let [operand, field] = &mut call.args[..] else { return };
        let Kind::Literal(Literal::String(name)) = &field.kind else { return };
        let name = name.clone();
        let of = self.check_field(id, operand, &name, true);
        let of = self.assignments.substituted(&of);
        self.set_type(id, of);
        if let Some(function) = self.environment.function(operators::OPT_SELECT) {
            self.references.insert(id, Reference::Function(function, [0].into()));
        }
    }

    fn resolve(&mut self, id: Id, function: &'static Function, target: Option<Id>, args: &[Id]) {
        match self.overloads(id, function, target, args) {
            Some((of, overloads)) => {
                self.set_type(id, of);
                self.references.insert(id, Reference::Function(function, overloads));
            }
            None => self.set_type(id, Type::Error),
        }
    }

    /// The type of a call and the overloads that it may be, or a report that there is none.
    fn overloads(
        &mut self,
        id: Id,
        function: &'static Function,
        target: Option<Id>,
        args: &[Id],
    ) -> Option<(Type, Box<[usize]>)> {
        let types: Vec<Type> = target.iter().chain(args).map(|id| self.type_of(*id)).collect();
        if function.name == operators::AND || function.name == operators::OR {
            let mut fine = true;
            for (arg, of) in args.iter().zip(&types) {
                if !self.assignments.assign(of, &Type::Bool) {
                    self.mismatch(*arg, &Type::Bool, of);
                    fine = false;
                }
            }
            return fine.then(|| (Type::Bool, [0].into()));
        }
        let (mut found, mut result): (Vec<usize>, Option<Type>) = (Vec::new(), None);
        for (index, overload) in function.overloads.iter().enumerate() {
            if overload.member != target.is_some() {
                continue;
            }
            let mut signature: Vec<&Type> = vec![&overload.result];
            signature.extend(&overload.args);
            let signature = self.assignments.instantiated(&signature);
            let Some((of, wanted)) = signature.split_first() else { continue };
            if !self.assignments.assign_all(&types, wanted) {
                continue;
            }
            found.push(index);
            let of = self.assignments.substituted(of);
            result = Some(match result {
                Some(before) if !before.is_dyn() && before != of => Type::Dyn,
                Some(before) => before,
                None => of,
            });
        }
        let Some(result) = result else {
            let types: Vec<String> = types.iter().map(|of| self.assignments.resolved(of).to_string()).collect();
            let signature = match (target, types.split_first()) {
                (Some(_), Some((target, args))) => format!("{target}.({})", args.join(", ")),
                _ => format!("({})", types.join(", ")),
            };
            self.report(id, format!("found no matching overload for '{}' applied to '{signature}'", function.name));
            return None;
        };
        Some((result, found.into()))
    }
}
