//! Compressed SPDY headers of a client: decompressing never panics, and stays within its limits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::spdy_headers(bytes));
