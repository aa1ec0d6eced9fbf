//! Bytes of a client on a SPDY connection: parsing never panics, and does not depend on how they are split.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::spdy_connection(bytes));
