//! Label and field selectors, as queries write them. Pure. Knows no kind: a type's selectable fields are passed in.

mod fields;
mod labels;
mod parser;
#[cfg(test)]
mod upstream_tests;

pub use fields::{FieldSelector, SelectableField};
pub use labels::{LabelSelector, label_selector_text};

/// An invalid selector; the message is the API's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);
