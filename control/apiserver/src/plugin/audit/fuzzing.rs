//! Properties of what reads audit policies, for fuzzers.

use super::policy::Policy;

/// A policy is read, always as the same one, or refused with a reason.
///
/// # Panics
/// When that does not hold.
pub fn policy(text: &[u8]) {
    match Policy::parse(text) {
        Ok(read) => assert_eq!(Policy::parse(text), Ok(read), "a policy is read in one way"),
        Err(why) => assert!(!why.is_empty(), "a policy is refused without a reason"),
    }
}
