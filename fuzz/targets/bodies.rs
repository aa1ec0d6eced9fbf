//! Bodies of requests to the API, in JSON, YAML or protobuf: decoding never panics, and an accepted object decodes
//! again as its own type.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| windlass_control::fuzzing::body(body));
