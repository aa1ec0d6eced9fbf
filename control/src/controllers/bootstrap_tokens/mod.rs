//! Tokens by which nodes join, as kubeadm makes them: what joining nodes read is signed with each of them (`signer`), and
//! expired ones are removed (`cleaner`). Upstream's `pkg/controller/bootstrap`.

mod cleaner;
mod signer;

pub(crate) use cleaner::BootstrapTokenCleaner;
pub(crate) use signer::BootstrapSigner;
