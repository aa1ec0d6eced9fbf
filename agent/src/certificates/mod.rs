//! The node's certificates, as upstream's certificate manager handles them: requested by CertificateSigningRequests,
//! rotated before they expire, stored in files; and the self-signed serving certificate that is used until there is
//! another.
//!
//! `certified_key`, `request` and `rotation` are pure; `store` is the files; `manager` is the loop of one certificate.
//! Users of a certificate get it over a channel. Imports nothing else of the agent but its metrics.

mod certified_key;
mod manager;
mod request;
mod rotation;
mod self_signed;
mod store;

use std::{future::Future, pin::Pin};

use kube::Client;

pub use certified_key::{CertificateError, CertificateTemplate, CertifiedKey, Purpose, Validity};
pub use manager::{CertificateManager, CertificateState};
pub use self_signed::self_signed;
pub use store::remove_all;

/// The identity that a request is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// The bootstrap credentials, which may request a node's first certificate.
    Bootstrap,
    /// The node, by its certificate.
    Node,
}

/// Provides clients of either identity; called at each attempt, so that new credentials are used without a restart. For
/// [`Requester::Bootstrap`] it returns an error text if there are no such credentials.
pub type ClientProvider =
    Box<dyn Fn(Requester) -> Pin<Box<dyn Future<Output = Result<Client, String>> + Send>> + Send + Sync>;

#[cfg(test)]
mod tests;
