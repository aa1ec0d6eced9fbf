//! Recursion over expressions, which may be deeper than a thread's stack is meant for.

/// What one step, and what it calls but for steps, may use.
const RED_ZONE: usize = 128 << 10;
/// How much is added at a time.
const SEGMENT: usize = 1 << 20;

/// Calls a function with enough stack for another step.
pub(crate) fn enough<R>(step: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(RED_ZONE, SEGMENT, step)
}
