use proptest::prelude::*;
use serde_json::json;

use super::lossless::{Random, arbitrary, type_names};
use crate::{
    protobuf::{Problem, decode, encode, envelope},
    testing::schema,
};

proptest! {
    #[test]
    fn no_bytes_panic(of in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let schema = schema(of.get::<&str>(type_names()));
        if let Ok(value) = decode(&schema, &bytes) {
            encode(&schema, &value).unwrap();
            prop_assert!(serde_json::from_str::<serde_json::Value>(&value.to_string()).is_ok());
        }
        let _ = envelope::open(&bytes);
        let _ = envelope::open(&[envelope::MAGIC, &bytes].concat());
    }

    #[test]
    fn no_damage_panics(of in any::<prop::sample::Index>(), seed: u64, at: prop::sample::Index, byte: u8, cut: bool) {
        let schema = schema(of.get::<&str>(type_names()));
        let mut bytes = encode(&schema, &arbitrary(&schema, &mut Random(seed), 0)).unwrap();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at + 1);
        }
        if let Ok(value) = decode(&schema, &bytes) {
            // Whatever was read can be written.
            encode(&schema, &value).unwrap();
        }
    }
}

#[test]
fn depth_is_bounded_both_ways() {
    let schema = schema("apiextensions/v1.JSONSchemaProps");
    // `not` is field 28, a message: each level is two bytes of tag and one to four of length.
    let mut bytes = Vec::new();
    let mut outcomes = Vec::new();
    for levels in 1..10_000 {
        let mut outer = Vec::new();
        crate::protobuf::wire::write_bytes_field(&mut outer, 28, &bytes);
        bytes = outer;
        if [50, 5000].contains(&levels) {
            outcomes.push(decode(&schema, &bytes).map(drop).map_err(|error| error.problem));
        }
    }
    assert_eq!(outcomes, [Ok(()), Err(Problem::TooDeep)]);
    let mut value = json!({});
    for _ in 0..110 {
        value = json!({"not": value});
    }
    assert_eq!(encode(&schema, &value).unwrap_err().problem, Problem::TooDeep);
    // Raw JSON counts too.
    let raw = format!("{}{}", "[".repeat(99), "]".repeat(99));
    let mut bytes = Vec::new();
    crate::protobuf::wire::write_nested(&mut bytes, 8, |out| {
        crate::protobuf::wire::write_bytes_field(out, 1, raw.as_bytes());
        Ok::<_, ()>(())
    })
    .unwrap();
    assert!(decode(&schema, &bytes).is_ok());
    let mut outer = Vec::new();
    for _ in 0..4 {
        outer.clear();
        crate::protobuf::wire::write_bytes_field(&mut outer, 28, &bytes);
        bytes.clone_from(&outer);
    }
    assert_eq!(decode(&schema, &bytes).unwrap_err().problem, Problem::TooDeep);
}

#[test]
fn a_small_body_does_not_become_a_large_object() {
    // Containers of two bytes each.
    let containers = [0x12, 0].repeat(1_500_000);
    let mut spec = Vec::new();
    crate::protobuf::wire::write_bytes_field(&mut spec, 2, &containers);
    assert_eq!(decode(&schema("core/v1.Pod"), &spec).unwrap_err().problem, Problem::TooManyValues);
}

#[test]
fn every_prefix_of_a_message_is_read_or_refused() {
    let schema = schema("core/v1.Pod");
    let bytes = encode(&schema, &arbitrary(&schema, &mut Random(11), 0)).unwrap();
    assert!(bytes.len() > 500, "{}", bytes.len());
    for end in 0..bytes.len() {
        let _ = decode(&schema, &bytes[..end]);
    }
    assert!(decode(&schema, &bytes).is_ok());
}
