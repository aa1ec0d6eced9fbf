//! Whatever a client sends in a message of a WebSocket: its channel and bytes are read without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_agent::server::fuzzing::channel_message(bytes));
