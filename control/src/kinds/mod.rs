//! What is known of built-in kinds. Imports nothing of `api`.

pub mod types;
