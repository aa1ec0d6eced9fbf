//! How a served version differs from the stored one. Pure.

use serde_json::Value;

/// The conversion between a version and the storage version.
#[derive(Debug, Clone, Copy)]
pub enum Conversion {
    /// The version is stored as it is served.
    None,
    /// The versions differ in `apiVersion` alone, as with a CustomResourceDefinition of the strategy `None`.
    Rename,
    /// Fields have other names.
    Fn {
        /// Makes the served object of the stored one.
        from_storage: fn(&mut Value),
        /// Makes the stored object of the served one.
        to_storage: fn(&mut Value),
    },
}
