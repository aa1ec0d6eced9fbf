//! Selectors of labels and of fields, in queries and in objects: parsing never panics, and both forms match the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| windlass_control::fuzzing::selectors(text));
