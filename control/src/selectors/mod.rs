//! Label and field selectors, as queries write them. Pure.

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;

/// An invalid selector; the message is the API's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);
