//! The fields of an object type by their names.

use std::{ops::Deref, sync::Arc};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::Property;

type Fields = IndexMap<Arc<str>, Property, RandomState>;

/// Fields in the order of their names. Each pass over an object looks up every field that it has, and a write makes ten passes:
/// a hash compares one name, where a tree compares a dozen.
#[derive(Debug, Clone, Default)]
pub struct Properties(Fields);

impl Properties {
    /// Sets a field.
    pub fn insert(&mut self, name: Arc<str>, property: Property) {
        self.0.insert_sorted(name, property);
    }

    /// The field of a name, made if it is missing.
    pub fn get_or_default(&mut self, name: &str) -> &mut Property {
        if !self.0.contains_key(name) {
            self.insert(name.into(), Property::default());
        }
        &mut self.0[name]
    }
}

impl FromIterator<(Arc<str>, Property)> for Properties {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Property)>>(fields: I) -> Self {
        let mut properties = Self::default();
        fields.into_iter().for_each(|(name, property)| properties.insert(name, property));
        properties
    }
}

impl Deref for Properties {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Properties {
    type Item = (&'a Arc<str>, &'a Property);
    type IntoIter = indexmap::map::Iter<'a, Arc<str>, Property>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_the_order_of_their_names_however_they_come() {
        let mut properties = Properties::default();
        for (name, number) in [("spec", 1), ("kind", 2), ("status", 3), ("kind", 4)] {
            properties.insert(name.into(), Property { number: Some(number), ..Property::default() });
        }
        properties.get_or_default("apiVersion");
        properties.get_or_default("spec").required = true;
        let all: Vec<_> = properties.iter().map(|(name, property)| (&**name, property.number)).collect();
        assert_eq!(all, [("apiVersion", None), ("kind", Some(4)), ("spec", Some(1)), ("status", Some(3))]);
        assert!(properties.get("spec").is_some_and(|spec| spec.required) && properties.get("x").is_none());
    }
}
