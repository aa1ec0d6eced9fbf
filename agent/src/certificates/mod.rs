//! The node's certificates, as upstream's certificate manager keeps them: asked for by a CertificateSigningRequest,
//! renewed before they end, kept in files; and the self-signed one that the node's API shows until it has another.
//!
//! `pair`, `request` and `plan` are pure; `store` is the files; `manager` is the loop that owns one certificate. Nothing
//! here knows who uses a certificate: it is told over a channel. Imports nothing else of the agent but its metrics.

mod manager;
mod pair;
mod plan;
mod request;
mod self_signed;
mod store;

use std::{future::Future, pin::Pin};

use kube::Client;

pub use manager::{Manager, Standing};
pub use pair::{Life, Pair, Purpose, Unfit, Wanted};
pub use self_signed::self_signed;
pub use store::forget;

/// Whose name a request is made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// Who may ask for a node's first certificate: the credentials that a new node is given.
    Bootstrap,
    /// The node itself, which has a certificate.
    Node,
}

/// Gives clients in the name of either; asked at each try, so that new credentials are used without a start. What it
/// gives for [`Requester::Bootstrap`] is an error with a sentence where there are no such credentials.
pub type Clients = Box<dyn Fn(Requester) -> Pin<Box<dyn Future<Output = Result<Client, String>> + Send>> + Send + Sync>;

#[cfg(test)]
mod tests;
