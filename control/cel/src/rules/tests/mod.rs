//! Facts of upstream's own tests, and what they leave out.

mod facts;
mod limits;
