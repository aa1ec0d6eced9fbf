//! Which types stand for type parameters: cel-go's `checker/types.go` and `mapping.go`.

use std::{collections::HashMap, sync::Arc};

use crate::types::{Param, Type};

/// What each parameter stands for, as far as that is known.
#[derive(Debug, Default)]
pub(super) struct Assignments {
    known: HashMap<Param, Type>,
    /// What was known before each change since the last success.
    undo: Vec<(Param, Option<Type>)>,
    free: u32,
}

impl Assignments {
    /// A parameter of which nothing is known.
    pub(super) fn fresh(&mut self) -> Type {
        let number = self.free;
        self.free += 1;
        Type::Param(Param::Free(number))
    }

    /// Whether a value of one type can stand where the other is expected, and notes what that says of parameters.
    pub(super) fn assign(&mut self, one: &Type, other: &Type) -> bool {
        self.assign_all(std::slice::from_ref(one), std::slice::from_ref(other))
    }

    /// As `assign`, for pairs: all or none.
    pub(super) fn assign_all(&mut self, ones: &[Type], others: &[Type]) -> bool {
        let fits = self.fits_all(ones, others);
        if fits {
            self.undo.clear();
        } else {
            while let Some((param, before)) = self.undo.pop() {
                match before {
                    Some(of) => self.known.insert(param, of),
                    None => self.known.remove(&param),
                };
            }
        }
        fits
    }

    fn note(&mut self, param: Param, of: Type) {
        let before = self.known.insert(param, of);
        self.undo.push((param, before));
    }

    fn fits_all(&mut self, ones: &[Type], others: &[Type]) -> bool {
        ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| self.fits(one, other))
    }

    fn fits(&mut self, one: &Type, other: &Type) -> bool {
        if let Type::Param(param) = other {
            let (valid, is_known) = self.stands_for(one, *param, other);
            if valid {
                return true;
            }
            if is_known {
                return false;
            }
        }
        if let Type::Param(param) = one {
            return self.stands_for(other, *param, one).0;
        }
        if one.is_dyn_or_error() || other.is_dyn_or_error() {
            return true;
        }
        match (one, other) {
            (Type::Null, other) | (other, Type::Null) => takes_null(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(one), Type::List(other)) => self.fits(one, other),
            (Type::Map(one), Type::Map(other)) => self.fits(&one.0, &other.0) && self.fits(&one.1, &other.1),
            (Type::Opaque(name, one), Type::Opaque(other_name, other)) => {
                name == other_name && self.fits_all(one, other)
            }
            _ => other.takes(one),
        }
    }

    /// Whether a type can be what a parameter stands for, and whether it already stands for one.
    fn stands_for(&mut self, of: &Type, param: Param, as_type: &Type) -> (bool, bool) {
        if of == as_type {
            return (true, true);
        }
        if let Some(known) = self.known.get(&param).cloned() {
            if known == *of {
                return (true, true);
            }
            if !self.fits(of, &known) {
                return (false, true);
            }
            let general = most_general(of, &known).clone();
            if !self.refers_to(&general, param) {
                self.note(param, general);
            }
            return (true, true);
        }
        if self.refers_to(of, param) {
            return (false, false);
        }
        self.note(param, of.clone());
        (true, false)
    }

    /// Whether a parameter is within a type.
    fn refers_to(&self, within: &Type, param: Param) -> bool {
        match within {
            Type::Param(other) if *other == param => true,
            Type::Param(other) => self.known.get(other).is_some_and(|known| self.refers_to(known, param)),
            Type::Map(types) => self.refers_to(&types.0, param) || self.refers_to(&types.1, param),
            other => other.params().iter().any(|of| self.refers_to(of, param)),
        }
    }

    /// A type with what its parameters stand for.
    pub(super) fn substituted(&self, of: &Type) -> Type {
        self.substitute(of, false)
    }

    /// A type without parameters: those of which nothing is known are dyn.
    pub(super) fn resolved(&self, of: &Type) -> Type {
        self.substitute(of, true)
    }

    fn substitute(&self, of: &Type, to_dyn: bool) -> Type {
        match of {
            Type::Param(param) => match self.known.get(param) {
                Some(known) => self.substitute(known, to_dyn),
                None if to_dyn => Type::Dyn,
                None => of.clone(),
            },
            Type::List(element) => Type::list(self.substitute(element, to_dyn)),
            Type::Map(types) => Type::map(self.substitute(&types.0, to_dyn), self.substitute(&types.1, to_dyn)),
            Type::Type(named) => Type::type_of(self.substitute(named, to_dyn)),
            Type::Opaque(name, params) => {
                let params = params.iter().map(|of| self.substitute(of, to_dyn)).collect();
                Type::Opaque(Arc::clone(name), params)
            }
            other => other.clone(),
        }
    }

    /// A signature whose letters are parameters of this call alone.
    pub(super) fn instantiated(&mut self, types: &[&Type]) -> Vec<Type> {
        let mut letters: HashMap<char, Type> = HashMap::new();
        types.iter().map(|of| self.instantiate(of, &mut letters)).collect()
    }

    fn instantiate(&mut self, of: &Type, letters: &mut HashMap<char, Type>) -> Type {
        match of {
            Type::Param(Param::Named(letter)) => match letters.get(letter) {
                Some(known) => known.clone(),
                None => {
                    let fresh = self.fresh();
                    letters.insert(*letter, fresh.clone());
                    fresh
                }
            },
            Type::List(element) => Type::list(self.instantiate(element, letters)),
            Type::Map(types) => {
                let key = self.instantiate(&types.0, letters);
                Type::map(key, self.instantiate(&types.1, letters))
            }
            Type::Type(named) => Type::type_of(self.instantiate(named, letters)),
            Type::Opaque(name, params) => {
                let params = params.iter().map(|of| self.instantiate(of, letters)).collect();
                Type::Opaque(Arc::clone(name), params)
            }
            other => other.clone(),
        }
    }
}

/// Types whose values may be missing.
const fn takes_null(of: &Type) -> bool {
    matches!(of, Type::Null | Type::Opaque(..) | Type::Object(_) | Type::Duration | Type::Timestamp)
}

/// The type of two that says less.
pub(super) fn most_general<'t>(one: &'t Type, other: &'t Type) -> &'t Type {
    if is_equal_or_less_specific(one, other) { one } else { other }
}

fn is_equal_or_less_specific(one: &Type, other: &Type) -> bool {
    match (one, other) {
        (Type::Dyn | Type::Any | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Any | Type::Param(_)) => false,
        (Type::Type(_), Type::Type(_)) => true,
        (Type::List(one), Type::List(other)) => is_equal_or_less_specific(one, other),
        (Type::Map(one), Type::Map(other)) => {
            is_equal_or_less_specific(&one.0, &other.0) && is_equal_or_less_specific(&one.1, &other.1)
        }
        (Type::Opaque(name, one), Type::Opaque(other_name, other)) => {
            name == other_name
                && one.len() == other.len()
                && one.iter().zip(other.iter()).all(|(one, other)| is_equal_or_less_specific(one, other))
        }
        _ => one == other,
    }
}
