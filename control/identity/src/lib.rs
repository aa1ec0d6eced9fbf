//! Who somebody is: the cluster's certificates, the tokens of service accounts, and the secrets by which nodes join. The API
//! server signs and verifies by it, the controllers sign what was approved.

pub mod bootstrap_secret;
pub mod pki;
pub mod service_account_tokens;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
