//! Which init containers have done their part, whatever became of them since. Pure.

use super::*;

/// Whether something that comes after the init container at `index` was made in the sandbox and the round that the pod is
/// in now. Nothing is made before those in front of it have done their part; so that one has, though it may have been
/// removed behind our back, or, as a sidecar, be starting again.
pub(crate) fn is_passed(spec: &PodSpec, observed: &Observed, index: usize) -> bool {
    let began = round(spec, observed);
    let sandbox = observed.sandbox().map(|s| s.id.as_str());
    let is_of_now = |i: &Instance| sandbox.is_none_or(|id| i.sandbox == id) && !is_past(i, began);
    let after = spec::init_containers(spec).iter().skip(index + 1).chain(&spec.containers);
    after.into_iter().any(|container| observed.newest(&container.name).is_some_and(is_of_now))
}
