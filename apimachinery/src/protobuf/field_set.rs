//! The JSON of a field set as upstream writes it: sorted by path elements, not by text.
//!
//! Upstream: `sigs.k8s.io/structured-merge-diff/fieldpath`, `PathElement.Compare` and `serialize.go`.

use std::cmp::Ordering;

use serde_json::Value;

/// Appends the JSON of a field set.
pub(super) fn write(out: &mut Vec<u8>, set: &Value) {
    let Value::Object(members) = set else {
        out.extend_from_slice(set.to_string().as_bytes());
        return;
    };
    // Only keys, values and indexes have another order than their text.
    let mut sorted: Vec<_> = members.iter().collect();
    if sorted.iter().filter(|(name, _)| !name.starts_with("f:")).count() > 1 {
        sorted.sort_by(|(a, _), (b, _)| compare(a, b));
    }
    out.push(b'{');
    for (place, (name, inner)) in sorted.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        out.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
        out.push(b':');
        write(out, inner);
    }
    out.push(b'}');
}

/// The order of two path elements: the set itself, then fields, keys, values and indexes.
fn compare(a: &str, b: &str) -> Ordering {
    rank(a).cmp(&rank(b)).then_with(|| match (a.split_once(':'), b.split_once(':')) {
        (Some(("k" | "v" | "i", a)), Some((_, b))) => match (serde_json::from_str(a), serde_json::from_str(b)) {
            (Ok(a), Ok(b)) => compare_values(&a, &b),
            _ => a.cmp(b),
        },
        _ => a.cmp(b),
    })
}

fn rank(element: &str) -> usize {
    let order = ["f:", "k:", "v:", "i:"];
    order.iter().position(|prefix| element.starts_with(prefix)).map_or(0, |place| place + 1)
}

/// Numbers before texts before truth values; the keys of a list item field by field.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let kind = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Object(a), Value::Object(b)) => {
            let fields = a.iter().zip(b);
            let differing = fields.map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare_values(x, y)));
            differing.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => kind(a).cmp(&kind(b)),
    }
}
