//! Amounts of resources by name, with upstream's arithmetic (`k8s.io/apiserver/pkg/quota/v1`). Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use windlass_kit::quantity::Quantity;

/// Amounts by the name of the resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceList(pub BTreeMap<String, Quantity>);

impl ResourceList {
    /// Reads a list of the API. What is no quantity is left out: validation refuses it.
    pub fn read(value: &Value) -> Self {
        let entries = value.as_object().into_iter().flatten();
        Self(entries.filter_map(|(name, amount)| Some((name.clone(), read_quantity(amount)?))).collect())
    }

    /// As the API writes it.
    pub fn write(&self) -> Value {
        let entries = self.0.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string())));
        Value::Object(entries.collect::<Map<String, Value>>())
    }

    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    pub fn set(&mut self, name: impl Into<String>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds each amount.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            self.set(name.clone(), self.get(name).map_or(*amount, |own| sum(own, *amount)));
        }
    }

    /// The greater of both for each name.
    pub fn at_least(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let greater = self.get(name).filter(|own| own >= amount).unwrap_or(*amount);
            self.set(name.clone(), greater);
        }
    }

    /// What is more than in `other`, and what is less as a negative amount; without zeros.
    pub fn minus(&self, other: &Self) -> Self {
        let zero = Quantity::from_units(0);
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let difference = |name: &String| match (self.get(name), other.get(name)) {
            (Some(own), other) => own.minus(other.unwrap_or(zero)),
            (None, Some(other)) => other.minus(other).minus(other),
            (None, None) => zero,
        };
        let all = names.into_iter().map(|name| (name.clone(), difference(name)));
        Self(all.filter(|(_, amount)| !amount.is_zero()).collect())
    }

    /// The entries that a name is true of.
    pub fn only(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let wanted = self.0.iter().filter(|(name, _)| is_wanted(name));
        Self(wanted.map(|(name, amount)| (name.clone(), *amount)).collect())
    }
}

/// The entries as upstream's errors show them.
impl std::fmt::Display for ResourceList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, (name, amount)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={amount}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// The sum of two amounts. A zero takes the suffix of what is added to it.
pub(super) fn sum(own: Quantity, more: Quantity) -> Quantity {
    if own.is_zero() { more } else { own.plus(more) }
}

fn read_quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// Names as upstream's errors show them.
pub fn names<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    let sorted: BTreeSet<&str> = all.into_iter().collect();
    sorted.into_iter().collect::<Vec<_>>().join(",")
}
