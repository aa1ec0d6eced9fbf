//! Lists, maps and structs that are written out.

use super::{Checker, Reference, assign::most_general};
use crate::{
    ast::{Entry, Id, List, Struct},
    types::Type,
};

impl Checker<'_> {
    pub(super) fn check_list(&mut self, id: Id, list: &mut List) {
        let mut joined: Option<Type> = None;
        for (index, element) in list.elements.iter_mut().enumerate() {
            self.check(element);
            let mut of = self.type_of(element.id);
            if list.optional.contains(&index) {
                of = self.unwrapped(element.id, of);
            }
            joined = Some(self.join(joined, of));
        }
        let element = joined.unwrap_or_else(|| self.assignments.fresh());
        self.set_type(id, Type::list(element));
    }

    pub(super) fn check_map(&mut self, id: Id, entries: &mut [Entry]) {
        let (mut keys, mut values): (Option<Type>, Option<Type>) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let of = self.type_of(entry.key.id);
            keys = Some(self.join(keys, of));
            self.check(&mut entry.value);
            let mut of = self.type_of(entry.value.id);
            if entry.optional {
                of = self.unwrapped(entry.value.id, of);
            }
            values = Some(self.join(values, of));
        }
        let key = keys.unwrap_or_else(|| self.assignments.fresh());
        let value = values.unwrap_or_else(|| self.assignments.fresh());
        self.set_type(id, Type::map(key, value));
    }

    /// What an optional element holds, or a report that it is none.
    fn unwrapped(&mut self, id: Id, of: Type) -> Type {
        match of.unwrapped() {
            Some(inner) => inner.clone(),
            None => {
                if !of.is_dyn() {
                    self.mismatch(id, &Type::optional(of.clone()), &of);
                }
                of
            }
        }
    }

    /// The type of all elements so far and one more. Elements of several types are reported when all types are known.
    fn join(&mut self, before: Option<Type>, of: Type) -> Type {
        let Some(before) = before else { return of };
        if self.assignments.assign(&before, &of) { most_general(&before, &of).clone() } else { Type::Dyn }
    }

    pub(super) fn check_struct(&mut self, id: Id, object: &mut Struct) {
        let Some((of, reference)) = self.lookup(&object.type_name) else {
            let name = object.type_name.clone();
            self.undeclared(id, &name);
            self.set_type(id, Type::Error);
            return;
        };
        let result = match (&of, reference) {
            (Type::Error, _) => Type::Error,
            (Type::Type(_), Reference::Type(named @ Type::Object(_))) => named,
            (Type::Type(named), _) => {
                self.report(id, format!("'{}' is not a message type", named.name()));
                Type::Error
            }
            (other, _) => {
                self.report(id, format!("'{}' is not a type", other.name()));
                Type::Error
            }
        };
        let name = object.type_name.strip_prefix('.').unwrap_or(&object.type_name).to_owned();
        object.type_name.clone_from(&name);
        self.set_type(id, result);
        for field in &mut object.fields {
            self.check(&mut field.value);
            let wanted = self.field(field.id, &name, &field.name).unwrap_or(Type::Error);
            let mut of = self.type_of(field.value.id);
            if field.optional {
                of = self.unwrapped(field.value.id, of);
            }
            if !self.assignments.assign(&wanted, &of) {
                let message =
                    format!("expected type of field '{}' is '{wanted}' but provided type is '{of}'", field.name);
                self.report(field.id, message);
            }
        }
    }
}
