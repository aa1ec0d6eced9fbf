//! Owners of fields, `metadata.managedFields`: an object is the same after its way through protobuf.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| windlass_control::fuzzing::owners(text));
