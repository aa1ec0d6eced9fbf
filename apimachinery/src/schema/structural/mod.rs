//! Structural schemas: what a CustomResourceDefinition writes as `openAPIV3Schema`, and the rules for it. Pure.

mod defaults;
mod field_path;
mod invariants;
mod language;
mod read;
mod rules;

pub use field_path::{FieldPath, field_path};
pub use language::RuleLanguage;
pub use read::read;
pub use rules::{validate, violations};
