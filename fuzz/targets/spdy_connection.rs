//! Whatever a client sends on a SPDY connection: it is read without a panic, and the same however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::spdy_connection(bytes));
