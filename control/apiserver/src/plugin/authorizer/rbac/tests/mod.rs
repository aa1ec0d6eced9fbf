//! What rules allow, and how roles are found.

mod policy;
mod rules;
