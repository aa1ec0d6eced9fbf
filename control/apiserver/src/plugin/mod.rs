//! What is plugged into the API server and knows kinds or users of the system: admission plugins, authenticators,
//! authorizers and the audit log, one file for each of upstream's.
//!
//! Imports `apiserver` and the store, never a handler.

pub(crate) mod admission;
pub(crate) mod audit;
pub(crate) mod authenticator;
pub(crate) mod authorizer;
pub(crate) mod store_view;
