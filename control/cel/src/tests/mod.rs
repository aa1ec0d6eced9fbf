//! What holds of all expressions.

mod deep;
mod random;

use crate::{Compiled, Environment, Program};

/// Programs are kept and shared by all requests.
#[test]
fn programs_can_be_shared() {
    const fn shared<T: Send + Sync>() {}
    shared::<Program>();
    shared::<Compiled>();
    shared::<Environment>();
}
