//! Label and field selectors, as queries write them. Pure.

mod fields;
mod labels;

pub use fields::Fields;
pub use labels::Labels;

/// Why a selector cannot be used; the text is the API's answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(pub(crate) String);
