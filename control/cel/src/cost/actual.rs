//! What calls have cost: cel-go's `CostTracker.costCall`, and upstream's `CallCost`.

use super::{AUTHORIZATION_CHECK, Cost, LIST, REGEX, STRUCT, TRAVERSAL, by_factor};
use crate::value::{Opaque, Value};

/// One for a call that makes a list of so many elements.
fn allocating(size: u64, factor: f64) -> u64 {
    let product = size as f64 * factor;
    // As upstream, a negative factor makes the call cheaper, and what no number holds is half of the largest one.
    let product = match product {
        ..0.0 => (product as i64).cast_unsigned(),
        18_446_744_073_709_551_616.0.. => 1 << 63,
        _ => product as u64,
    };
    product.wrapping_add(1 + LIST)
}

/// A number of characters, each of which is read.
fn characters(count: u64, factor: f64) -> u64 {
    by_factor(count, factor * TRAVERSAL)
}

fn regex(text: u64, pattern: u64) -> u64 {
    by_factor(text.saturating_add(1), TRAVERSAL).saturating_mul(by_factor(pattern, REGEX))
}

/// One for each value within a value, and for a text what reading it costs; upstream's `traversalCost`.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => list.iter().map(|element| element.map_or(1, |element| traversal(&element))).sum(),
        Value::Map(map) => {
            let of_value = |key: &Value<'_>| match map.find(key) {
                Some(Ok(value)) => traversal(&value),
                _ => 1,
            };
            map.keys().iter().map(|key| traversal(key) + of_value(key)).sum()
        }
        _ => 1,
    }
}

impl Cost {
    /// What a call with these arguments and this result has cost. An error among them is null.
    pub(crate) fn actual(self, args: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
        let arg = |index: usize| args.get(index).unwrap_or(&Value::Null);
        let size = |index: usize| arg(index).cost_size();
        // Upstream's own functions do not look into optionals.
        let plain = |index: usize| arg(index).size();
        match self {
            Self::Accessor | Self::CidrIp | Self::One | Self::AddedList | Self::Logical | Self::Conditional => 1,
            Self::AuthorizationCheck => AUTHORIZATION_CHECK,
            Self::Selector => {
                let length = plain(1);
                let requirements = by_factor(by_factor(length, 0.5), (LIST + STRUCT) as f64);
                (LIST + characters(length, 1.0)).saturating_add(requirements)
            }
            Self::Scan => traversal(arg(0)),
            Self::Traverse | Self::Parse => characters(plain(0), 1.0),
            Self::Replace | Self::Split | Self::ParseTwice => by_factor_of(plain(0)),
            Self::Join => by_factor_of(result.map_or(1, Value::size)),
            Self::Find => regex(plain(0), plain(1)),
            Self::ContainsIp => characters(plain(0) * 2, 1.0),
            Self::ContainsIpText => characters(plain(0) * 2, 1.0) + characters(plain(1), 1.0),
            Self::ContainsCidr => characters(plain(0) * 2, 1.0) + characters(plain(0), 1.0) + 1,
            Self::ContainsCidrText => {
                characters(plain(0) * 2, 1.0) + characters(plain(0), 1.0) + 1 + characters(plain(1), 1.0)
            }
            Self::Validate => match arg(0) {
                Value::Opaque(Opaque::Format(format)) => regex(plain(1), format.max_regex_size),
                _ => 1,
            },
            Self::Sets => 1 + plain(0).saturating_mul(plain(1)),
            Self::SetsTwice => 1 + (plain(0).saturating_mul(plain(1)) as f64 * 2.0) as u64,
            Self::Slice | Self::Range | Self::Reverse => allocating(result.map_or(1, Value::size), 1.0),
            Self::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) => *depth as f64,
                    _ => 1.0,
                };
                allocating(plain(0), depth)
            }
            Self::Distinct | Self::Sort | Self::SortTexts => self_compared(args.last().unwrap_or(&Value::Null)),
            Self::Format | Self::StringToBytes | Self::BytesToString | Self::Quote | Self::Affix => {
                characters(size(0), 1.0)
            }
            Self::InList => size(1),
            Self::Matches => regex(size(0), size(1)),
            Self::Contains => characters(size(0), 1.0).saturating_mul(characters(size(1), 1.0)),
            Self::Added => characters(size(0).saturating_add(size(1)), 1.0),
            Self::Equals if matches!(arg(0), Value::Opaque(_)) => 1,
            Self::Equals | Self::Compared => characters(size(0).min(size(1)), 1.0),
        }
    }
}

/// Two reads of so many characters.
fn by_factor_of(count: u64) -> u64 {
    // In this order the float is upstream's.
    (count as f64 * 2.0 * TRAVERSAL).ceil() as u64
}

/// Each element with each other one.
fn self_compared(list: &Value<'_>) -> u64 {
    let size = list.size();
    let Value::List(elements) = list else { return allocating(0, 2.0) };
    let first = elements.get(0).and_then(Result::ok);
    match first {
        Some(Value::String(_) | Value::Bytes(_)) => allocating(size.saturating_mul(size), 2.0 + TRAVERSAL),
        Some(_) => allocating(size.saturating_mul(size), 2.0),
        None => allocating(0, 2.0),
    }
}
