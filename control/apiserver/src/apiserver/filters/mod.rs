//! What every request passes before its handler, in the order of `chain`; and what it is limited and counted by.

pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod chain;
pub(crate) mod impersonation;
pub(crate) mod limits;
pub(crate) mod panics;
pub(crate) mod request_metrics;
pub(crate) mod token_authenticator;
