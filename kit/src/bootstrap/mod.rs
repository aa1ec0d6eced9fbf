//! What lets a new node into a cluster, as kubeadm has it: bootstrap tokens, the signature of the cluster's description
//! (`cluster-info`) by a token, and pins of the cluster's authority. Pure; imports nothing of the rest but certificates' PEM.

mod jws;
mod pin;
mod token;

pub use jws::{BadSignature, sign, verify};
pub use pin::{Pin, any_matches};
pub use token::{BadToken, Token};

/// The prefix of the keys under which signatures stand in the ConfigMap `kube-public/cluster-info`; the token's id follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

#[cfg(test)]
mod tests;
