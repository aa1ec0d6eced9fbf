//! The protobuf representation of objects: encoding and decoding driven by a [`Schema`], with the bytes that Go's generated
//! code gives for the same object.
//!
//! [`encode`] and [`decode`] are for the message of one type, without `apiVersion` and `kind`, which are not on its wire;
//! [`envelope`] adds them and frames watch events. Pure; imports nothing but [`crate::schema`] and [`crate::duration`]. No
//! input panics.
//!
//! Upstream: `k8s.io/apimachinery/pkg/runtime/serializer/protobuf` and the `generated.pb.go` of each API package.

mod decode;
mod encode;
pub mod envelope;
mod error;
mod field_set;
mod scalars;
pub mod wire;

pub use decode::{decode, decode_compact};
pub use encode::{encode, encode_into, is_on_wire};
pub use error::{Error, Problem};

#[cfg(doc)]
use crate::schema::Schema;

#[cfg(test)]
mod tests;
