//! Types of API objects as values: one node for built-in types and for those of a CustomResourceDefinition, and what the
//! API server does by them. Pure. Knows no kind.
//!
//! What is sent goes through [`check`] (unknown and mistyped fields), then [`canonicalize`] (the form that is stored), and for
//! a custom resource [`default`] and [`validate`]. What is read from the store, of a schema that may have changed since, goes
//! through [`drop_invalid_fields`], [`canonicalize`] and [`default`].

mod canonical;
mod check;
mod default;
mod node;
mod properties;
mod prune;
mod scalars;
pub mod structural;
pub mod table;
mod validate;
mod wire_order;

pub use canonical::{canonical, canonicalize, canonicalize_types, drop_invalid_fields, same, same_except, unset};
pub use check::{FieldProblems, check, types_fit};
pub use default::default;
pub use node::{
    Inline, Junctors, Kind, ListType, MapType, NamedType, Object, PatchStrategy, Presence, Property, Schema,
    ValidationRule, Validations,
};
pub use properties::Properties;
pub use prune::prune;
pub use scalars::{rfc3339, time};
pub use table::{TableError, TypeIndex};
pub use validate::{
    has_format,
    pattern::{self, Pattern},
    unknown_formats, validate, validate_status,
};
pub use wire_order::{Member, WireOrder};

#[cfg(test)]
mod tests;
