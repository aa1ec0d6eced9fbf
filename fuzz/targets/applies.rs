//! Objects that two managers apply: merging never panics, and applying twice is applying once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| windlass_control::fuzzing::applies(text));
