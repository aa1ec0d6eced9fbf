//! Declared types: what a schema says of values, for checking, for costs and for reading them. Upstream's `DeclType`
//! (`apiserver/pkg/cel/types.go`) with what `UnstructuredToVal` reads of the schema.

mod escape;
mod schema;

use std::{collections::HashMap, sync::Arc};

pub use self::escape::{escape, unescape};
use crate::{
    cost::SizeEstimate,
    parser::RESERVED,
    provider::{SizeEstimator, TypeProvider},
    types::Type,
};

/// The size of the largest request, in bytes; upstream's `MaxRequestSizeBytes`.
pub const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;

/// A type that a schema declares.
#[derive(Debug, Clone)]
pub struct DeclType {
    shape: Shape,
    cel_type: Type,
    nullable: bool,
    max_elements: u64,
    min_serialized_size: u64,
}

/// What a declared type is made of.
#[derive(Debug, Clone)]
pub enum Shape {
    /// Any JSON, known only when it is there.
    Dyn,
    /// A text or a whole number.
    IntOrString,
    /// A scalar.
    Scalar(Scalar),
    /// A list, and how its elements are compared.
    List(Arc<DeclType>, ListKind),
    /// A map from texts.
    Map(Arc<DeclType>),
    /// An object: its properties by their names in JSON, sorted.
    Object(Box<[Property]>),
    /// What a schema lets pass without a type: nothing selects it.
    Unknown,
}

/// A scalar and how it is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Double,
    /// A text.
    String,
    /// A text of the format byte.
    Bytes,
    /// A text of the format duration.
    Duration,
    /// A text of the format date.
    Date,
    /// A text of the format date-time.
    DateTime,
}

/// How lists of a schema are compared and joined: `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// Element by element.
    Atomic,
    /// Without order; an element is there once.
    Set,
    /// Without order; of elements with the same keys there is one.
    Map(Box<[Box<str>]>),
}

/// A property of an object.
#[derive(Debug, Clone)]
pub struct Property {
    name: Box<str>,
    declared: Arc<DeclType>,
}

impl DeclType {
    /// What it is made of.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The type that expressions see.
    #[must_use]
    pub const fn cel_type(&self) -> &Type {
        &self.cel_type
    }

    pub(crate) const fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// The largest number of elements, entries, or bytes of a text, that a request can hold.
    #[must_use]
    pub const fn max_elements(&self) -> u64 {
        self.max_elements
    }

    /// The bytes of the smallest value in JSON.
    #[must_use]
    pub const fn min_serialized_size(&self) -> u64 {
        self.min_serialized_size
    }

    /// How often a value of this type fits into a request, at most; upstream's `maxCardinality`.
    #[must_use]
    pub const fn max_cardinality(&self) -> u64 {
        MAX_REQUEST_BYTES / (self.min_serialized_size + 1)
    }

    /// The type of a property, by its name in JSON.
    pub(crate) fn property(&self, name: &str) -> Option<&Self> {
        match &self.shape {
            Shape::Map(value) => Some(value),
            _ => self.own_property(name).map(|declared| &**declared),
        }
    }

    /// The type of a property of an object, by its name in JSON.
    pub(crate) fn own_property(&self, name: &str) -> Option<&Arc<Self>> {
        let Shape::Object(properties) = &self.shape else { return None };
        let index = properties.binary_search_by(|property| (*property.name).cmp(name)).ok()?;
        properties.get(index).map(|property| &property.declared)
    }

    /// The type of a field, by its name in expressions.
    fn field(&self, name: &str) -> Option<&Self> {
        let property = match &self.shape {
            Shape::Object(_) => self.property(&unescape(name)?)?,
            _ => return None,
        };
        // A name is a field only as it is escaped: `a__dot__b`, and `namespace` never.
        let original = unescape(name)?;
        let fine = escape(&original).is_some_and(|escaped| escaped == name);
        (fine && !matches!(property.shape, Shape::Unknown)).then_some(property)
    }

    /// The type that a path leads to: names of fields, `@items`, `@keys` and `@values`; upstream's `sizeEstimator`.
    #[must_use]
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |declared, step| match (*step, &declared.shape) {
            ("@items" | "@values", Shape::List(element, _) | Shape::Map(element)) => Some(&**element),
            ("@keys", Shape::Map(_)) => Some(&*KEY),
            ("@items" | "@values" | "@keys", _) => None,
            (name, _) => declared.field(name),
        })
    }

    fn collect(self: &Arc<Self>, found: &mut HashMap<Arc<str>, Arc<Self>>) {
        match (&self.shape, &self.cel_type) {
            (Shape::Object(properties), Type::Object(name)) => {
                found.insert(Arc::clone(name), Arc::clone(self));
                properties.iter().for_each(|property| property.declared.collect(found));
            }
            (Shape::List(element, _) | Shape::Map(element), _) => element.collect(found),
            _ => {}
        }
    }
}

/// The type of keys of maps, whose length nothing says.
static KEY: std::sync::LazyLock<DeclType> = std::sync::LazyLock::new(|| DeclType {
    shape: Shape::Scalar(Scalar::String),
    cel_type: Type::String,
    nullable: false,
    max_elements: 0,
    min_serialized_size: 2,
});

/// Declared types with all types of objects that they hold: what the checker asks of them.
#[derive(Debug, Clone, Default)]
pub struct DeclTypes {
    objects: HashMap<Arc<str>, Arc<DeclType>>,
}

impl DeclTypes {
    /// Types, and what they hold.
    #[must_use]
    pub fn new(roots: impl IntoIterator<Item = Arc<DeclType>>) -> Self {
        let mut objects = HashMap::new();
        for root in roots {
            root.collect(&mut objects);
        }
        Self { objects }
    }
}

impl TypeProvider for DeclTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        self.objects.get(name).map(|declared| declared.cel_type.clone())
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        let object = self.objects.get(type_name)?;
        // Reserved words need no escape after a dot.
        let found =
            object.field(field).or_else(|| RESERVED.contains(&field).then(|| object.field(&format!("__{field}__")))?);
        found.map(|declared| declared.cel_type.clone())
    }
}

/// The type of the variable `self`. As upstream's estimator, it takes every path for one from that variable, also those that
/// begin elsewhere: verdicts about costs depend on it.
impl SizeEstimator for DeclType {
    fn estimate(&self, path: &[&str]) -> Option<SizeEstimate> {
        let (_, rest) = path.split_first()?;
        self.at(rest).map(|declared| SizeEstimate { min: 0, max: declared.max_elements })
    }
}
