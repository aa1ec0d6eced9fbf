//! Any object of any type survives both ways.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{
    protobuf::{decode, decode_compact, encode, is_on_wire},
    schema::{Kind, Presence, Schema, same},
    testing::{TYPES, schema},
};

/// The names of all types on the wire.
pub(super) fn type_names() -> &'static [&'static str] {
    static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let mut names: Vec<_> = TYPES.names().filter(|name| is_on_wire(&schema(name))).collect();
        names.sort_unstable();
        assert!(names.len() > 500, "{}", names.len());
        names
    });
    &NAMES
}

/// Numbers from a seed (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.max(1);
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// A value of a type, in the form in which Go writes it.
pub(super) fn arbitrary(schema: &Schema, random: &mut Random, depth: usize) -> Value {
    let deep = depth > 6;
    match &schema.resolved().kind {
        Kind::Bool => random.pick(&[json!(true), json!(false)]),
        Kind::Integer(32) => random.pick(&[json!(0), json!(-1), json!(i32::MAX), json!(i32::MIN), json!(80)]),
        Kind::Integer(_) => random.pick(&[json!(0), json!(-1), json!(i64::MAX), json!(i64::MIN), json!(1_i64 << 40)]),
        Kind::Number => random.pick(&[json!(0), json!(-2), json!(0.5), json!(1e300)]),
        Kind::String => random.pick(&["", "a", "é\u{10ffff}", "a long text, longer than one hundred and twenty-seven bytes, so that its length takes two bytes of the message that it is in"]).into(),
        Kind::Bytes => random.pick(&["", "AA==", "/////w=="]).into(),
        Kind::Quantity => random.pick(&["0", "100m", "1Gi", "1e3"]).into(),
        Kind::IntOrString => random.pick(&[json!(0), json!(-80), json!(""), json!("25%")]),
        Kind::Time => random.pick(&["2024-02-29T12:00:00Z", "1969-12-31T23:59:58Z", "9999-12-31T23:59:59Z"]).into(),
        Kind::MicroTime => random.pick(&["2024-02-29T12:00:00.000001Z", "0999-12-31T23:59:58.900000Z"]).into(),
        Kind::Duration => random.pick(&["0s", "1m30s", "-1.5ms"]).into(),
        Kind::FieldsV1 => json!({"f:a": {".": {}, "k:{\"port\":80}": {}, "k:{\"port\":443}": {"f:x": {}}}}),
        Kind::Json | Kind::RawExtension | Kind::Any => random.pick(&[json!({}), json!({"b": [1, null, "<"], "a": 0.5})]),
        Kind::List(_) if deep => json!([]),
        Kind::List(items) => (0..random.below(3)).map(|_| arbitrary(items, random, depth + 1)).collect(),
        Kind::Map(_) if deep => json!({}),
        Kind::Map(values) => {
            let keys = ["", "a", "a-b", "a.b"];
            let entries = (0..random.below(3)).map(|_| (random.pick(&keys).to_owned(), arbitrary(values, random, depth + 1)));
            Value::Object(entries.collect())
        }
        Kind::Object(object) => {
            let mut fields = Map::new();
            for (name, property) in &object.properties {
                // `apiVersion` and `kind` of the type are on the wire of the envelope alone.
                let mut off_wire = object.inline.iter().filter(|inline| inline.number.is_none());
                let off_wire = off_wire.any(|inline| inline.of.definition().property(name).is_some());
                if !deep && !off_wire && random.below(3) > 0 {
                    let value = arbitrary(&property.schema, random, depth + 1);
                    // On the wire an empty list is the same as an absent one, even if JSON distinguishes them.
                    if !(property.presence == Presence::Pointer && value == json!([])) {
                        fields.insert((**name).to_owned(), value);
                    }
                }
            }
            Value::Object(fields)
        }
        Kind::Union(forms) => {
            let forms: Vec<_> = forms.properties.values().filter(|_| !deep).collect();
            let value = match &forms[..] {
                [] => json!({}),
                forms => arbitrary(&random.pick(forms).schema, random, depth + 1),
            };
            // An empty list is the same message as nothing at all.
            if value == json!([]) { json!({}) } else { value }
        }
        Kind::Named(_) => json!({}),
    }
}

/// Whether `whole` contains all of `part`, except empty values.
fn is_within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(name, value)| match whole.get(name) {
            Some(inner) => is_within(value, inner),
            None => is_zero(value),
        }),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_within(part, whole))
        }
        (part, Value::Null) => is_zero(part),
        _ => part == whole,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_is_lost(of in any::<prop::sample::Index>(), seed: u64) {
        let name = *of.get(type_names());
        let schema = schema(name);
        let value = arbitrary(&schema, &mut Random(seed), 0);
        let bytes = encode(&schema, &value).unwrap();
        let decoded = decode(&schema, &bytes).unwrap();
        prop_assert!(is_within(&value, &decoded), "{name}\n{value:#}\n{decoded:#}");
        let again = decode(&schema, &encode(&schema, &decoded).unwrap()).unwrap();
        prop_assert_eq!(again, decoded, "{}", name);
    }
    #[test]
    fn what_is_read_is_equal_to_what_was_written(of in any::<prop::sample::Index>(), seed: u64) {
        let name = *of.get(type_names());
        let schema = schema(name);
        let value = arbitrary(&schema, &mut Random(seed), 0);
        let again = decode_compact(&schema, &encode(&schema, &value).unwrap()).unwrap();
        prop_assert!(same(&schema, &value, &again), "{name}\n{value:#}\n{again:#}");
    }
}
