//! Messages of a client over a WebSocket: parsing channel and bytes never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::channel_message(bytes));
