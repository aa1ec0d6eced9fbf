//! The messages of CRI that the façade reads and writes, with the fields that it uses: `runtime.v1` of upstream's
//! `k8s.io/cri-api`. Pure.
//!
//! Numbers of states are constants next to the messages, since protobuf sends them as numbers. A field that is not listed is
//! skipped when it is read, and has its default for the client when it is not written.

mod field;
mod image;
mod runtime;
mod stats;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use field::Hidden;
pub(crate) use field::Message;
use field::messages;
pub(crate) use image::*;
pub(crate) use runtime::*;
pub(crate) use stats::*;
