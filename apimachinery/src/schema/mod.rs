//! Types of API objects as values: one node for built-in types and for those of a CustomResourceDefinition, and what the
//! API server does by them. Pure. Knows no kind.

mod node;
pub mod table;
mod wire_order;

pub use node::{
    Inline, Junctors, Kind, ListType, MapType, NamedType, Object, PatchStrategy, Presence, Property, Schema,
    ValidationRule, Validations,
};
pub use table::{TableError, TypeIndex};
pub use wire_order::{Member, WireOrder};

#[cfg(test)]
mod tests;
