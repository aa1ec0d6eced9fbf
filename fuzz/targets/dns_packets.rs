//! Packets to the cluster's DNS: none ends it, and what it answers is a message to that request that fits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| windlass_control::fuzzing::dns_packet(bytes));
