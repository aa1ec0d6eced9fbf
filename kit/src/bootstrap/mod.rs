//! kubeadm's bootstrap: tokens, the signature of `cluster-info` by a token, and pins of the cluster's CA. Pure; imports
//! nothing else of ours.

mod jws;
mod pin;
mod token;

pub use jws::{BadSignature, sign, verify};
pub use pin::{Pin, any_matches};
pub use token::{BadToken, Token};

/// The prefix of the keys of signatures in the ConfigMap `kube-public/cluster-info`; the id of the token follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

#[cfg(test)]
mod tests;
