//! DynamicResources: no devices are allocated here, as in a cluster in which no driver offers any. A pod that claims some
//! waits, since it was not meant to run without. Pure.

use super::Failure;
use crate::model::Constraints;

const NAME: &str = "DynamicResources";

pub(super) fn filter(constraints: &Constraints) -> Result<(), Failure> {
    if constraints.claims_devices { Err(Failure::unresolvable(NAME, "cannot allocate all claims")) } else { Ok(()) }
}
