//! Each program of this crate is this file: libFuzzer feeds the target that has the program's name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_fuzz_targets::run(env!("CARGO_BIN_NAME"), bytes));
