//! What a pod's life demands: from its object, what runs of it and the time, the next actions ([`plan`]) and the status
//! that the API shows ([`status`]). Pure: no clock is read, nothing is awaited, no file is opened.
//!
//! The bottom of `pods`: imports none of the other folders, and of the agent only `engine`'s plain data and `cgroup`'s
//! arithmetic.

pub(crate) mod action;
mod adopted;
pub(crate) mod allocated;
pub(crate) mod kill;
pub(crate) mod observed;
pub(crate) mod patch;
pub(crate) mod plan;
pub(crate) mod pod_limits;
pub(crate) mod probes;
pub(crate) mod reasons;
pub(crate) mod resize;
pub(crate) mod resize_message;
pub(crate) mod restarts;
pub(crate) mod spec;
pub(crate) mod status;
pub(crate) mod step_key;
mod stopping;
mod termination;
#[cfg(test)]
mod tests;
pub(crate) mod time;
pub(crate) mod view;
pub(crate) mod volumes;
