//! Whatever is sent to the API as an object, in JSON, YAML or protobuf: it is read without a panic, and what is taken
//! can be read back as its own type.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| windlass_control::fuzzing::body(body));
