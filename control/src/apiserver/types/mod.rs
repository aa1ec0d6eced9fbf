//! The types that the API serves, as values: a [`Resource`] is a name in a group with its behaviour, a [`Version`] one
//! form in which it is served, and the [`Catalog`] an immutable snapshot of all of them, which is replaced as a whole
//! when a type comes or goes.
//!
//! Knows no kind: built-in resources come from `kinds`, others from CustomResourceDefinitions.

mod catalog;
mod conversion;
mod gvk;
mod resource;
mod schema;
mod table;
mod version;

pub use catalog::{Catalog, Catalogs, Group, GroupVersion, compare_versions};
pub use conversion::{Conversion, ConversionError};
pub use gvk::{Gvk, Name};
pub use resource::{Definition, Effect, GcPolicy, Generation, Inert, Resource, Storage};
pub use schema::TypeSchema;
pub use table::{AGE, Column, NAME, Row, Table, age, duration};
pub use version::{Version, VersionSpec};
