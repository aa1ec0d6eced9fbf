//! Patches of all kinds: the patched object is still an object of its kind.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| windlass_control::fuzzing::patch(text));
