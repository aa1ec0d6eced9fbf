//! Whatever a client sends as compressed headers of SPDY: they are read without a panic and within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::spdy_headers(bytes));
