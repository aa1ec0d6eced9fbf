//! The types that the API serves, as values: a [`Resource`] is a name in a group with its behaviour, a [`Version`] one
//! form in which it is served, and the [`Catalog`] an immutable snapshot of all of them, which is replaced as a whole
//! when a type comes or goes.
//!
//! Knows no kind: built-in resources come from `kinds`, others from CustomResourceDefinitions.

mod catalog;
mod conversion;
mod conversion_cache;
mod definition;
mod extension;
mod gvk;
mod handler;
mod list_item;
mod priority;
mod resource;
mod schema;
mod strategy;
mod subresource;
mod table;
mod version;

pub use catalog::{Catalog, Catalogs, Group, Published, PublishedGroup, ServedVersion, compare_versions};
pub use conversion::{Conversion, ConversionError, Converter};
pub use conversion_cache::Conversions;
pub use definition::Definition;
pub use extension::{Extension, ExtensionError, ExtensionServer, OpenApiV2, OpenApiV3};
pub use gvk::{Gvk, Name};
pub use handler::Handler;
pub use priority::Priority;
pub use resource::{Effect, GcPolicy, Generation, Inert, Resource, Storage};
pub use schema::TypeSchema;
pub use strategy::{FirstDeletion, Strategy, Tolerance};
pub use subresource::{FieldResult, Part, ScalePaths, Serves, Subresource};
pub(crate) use subresource::{keep_field, keep_metadata, status_keeps_metadata};
pub use table::{AGE, Column, NAME, Row, Table, age, duration};
pub use version::{Version, VersionSpec};
