//! Structural schemas: what a CustomResourceDefinition writes as `openAPIV3Schema`, and the rules for it. Pure.

mod defaults;
mod invariants;
mod read;
mod rules;

pub use read::read;
pub use rules::{validate, violations};
