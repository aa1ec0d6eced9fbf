//! Quantities: upstream's `library/quantity.go`.

use std::{cmp::Ordering, fmt, str::FromStr as _, sync::Arc};

use windlass_apimachinery::quantity::Quantity;

use super::{Row, global, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Opaque, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("quantity", "string_to_quantity", "string -> quantity", Cost::Parse, quantity),
    global("isQuantity", "is_quantity_string", "string -> bool", Cost::Parse, is_quantity),
    global("sign", "quantity_sign", "quantity -> int", Cost::Accessor, sign),
    member("isGreaterThan", "quantity_is_greater_than", "quantity, quantity -> bool", Cost::Accessor, |args| compared(args, |order| Value::Bool(order.is_gt()))),
    member("isLessThan", "quantity_is_less_than", "quantity, quantity -> bool", Cost::Accessor, |args| compared(args, |order| Value::Bool(order.is_lt()))),
    member("compareTo", "quantity_compare_to", "quantity, quantity -> int", Cost::Accessor, |args| compared(args, |order| Value::Int(order as i64))),
    member("asApproximateFloat", "quantity_get_float", "quantity -> double", Cost::Accessor, as_float),
    member("asInteger", "quantity_get_int", "quantity -> int", Cost::Accessor, as_integer),
    member("isInteger", "quantity_is_integer", "quantity -> bool", Cost::Accessor, is_integer),
    member("add", "quantity_add", "quantity, quantity -> quantity", Cost::Accessor, add),
    member("add", "quantity_add_int", "quantity, int -> quantity", Cost::Accessor, add),
    member("sub", "quantity_sub", "quantity, quantity -> quantity", Cost::Accessor, sub),
    member("sub", "quantity_sub_int", "quantity, int -> quantity", Cost::Accessor, sub),
];

/// Digits that upstream is sure to get into 64 bits; its `maxInt64Factors`.
const FAST_DIGITS: usize = 18;

/// A quantity, and what upstream keeps it in, on which depends whether it says that it is an integer.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    quantity: Quantity,
    /// upstream's `int64Amount`: a value and an exponent of ten. Nothing if it is an `inf.Dec`.
    fast: Option<(i64, i32)>,
}

impl Amount {
    /// Reads a quantity.
    ///
    /// # Errors
    /// upstream's words.
    fn parse(text: &str) -> Result<Self, &'static str> {
        const FORMAT: &str =
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        const NUMERIC: &str = "unable to parse numeric part of quantity";
        const SUFFIX: &str = "unable to parse quantity's suffix";
        if text.is_empty() {
            return Err(FORMAT);
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (whole, rest) = unsigned.split_at(number);
        let after_point = rest.strip_prefix('.').unwrap_or("");
        let places = after_point.find(|c: char| !c.is_ascii_digit()).unwrap_or(after_point.len());
        let suffix = if rest.starts_with('.') { &after_point[places..] } else { rest };
        let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
        let digits = letters.strip_prefix(['+', '-']).unwrap_or(letters);
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(FORMAT);
        }
        match Quantity::from_str(text) {
            Ok(quantity) => {
                let fast = fast(whole.trim_start_matches('0'), &after_point[..places], suffix, text.starts_with('-'));
                Ok(Self { quantity, fast })
            }
            Err(_) if Quantity::from_str(&format!("1{suffix}")).is_ok() => Err(NUMERIC),
            Err(_) => Err(SUFFIX),
        }
    }

    const fn of_int(value: i64) -> Self {
        Self { quantity: Quantity::from_units(value), fast: Some((value, 0)) }
    }

    /// upstream's `AsInt64`.
    fn as_integer(&self) -> Option<i64> {
        match self.fast? {
            (value, 0) => Some(value),
            (value, scale) => scaled(value, scale),
        }
    }

    fn plus(&self, other: &Self, sign: i64) -> Self {
        let quantity = if sign < 0 { self.quantity.minus(other.quantity) } else { self.quantity.plus(other.quantity) };
        let fast = match (self.fast, other.fast) {
            (Some(one), Some((value, scale))) => value.checked_mul(sign).and_then(|value| sum(one, (value, scale))),
            _ => None,
        };
        Self { quantity, fast }
    }

    fn as_float(&self) -> f64 {
        match self.fast {
            Some((value, 0)) => value as f64,
            Some((value, scale)) => value as f64 * format!("1e{scale}").parse::<f64>().unwrap_or(f64::INFINITY),
            None => self.quantity.approximate(),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.quantity.cmp(&other.quantity)
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.compare(other).is_eq()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quantity.fmt(f)
    }
}

/// What upstream's `ParseQuantity` keeps in 64 bits.
fn fast(whole: &str, fraction: &str, suffix: &str, negative: bool) -> Option<(i64, i32)> {
    let whole = if whole.is_empty() { "0" } else { whole };
    let digits = whole.len() + fraction.len();
    let value: i64 = format!("{whole}{fraction}").parse().ok()?;
    let value = if negative { -value } else { value };
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|known| *known == suffix);
    if let Some(index) = binary {
        let bits = (u32::try_from(index).ok()? + 1) * 10;
        let fits = fraction.is_empty() && whole.len() + bits as usize * 3 / 10 <= 14;
        return fits.then(|| value.checked_mul(1 << bits).map(|value| (value, 0)))?;
    }
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].iter().position(|known| *known == suffix);
    let exponent = match decimal {
        Some(index) => i32::try_from(index).ok()? * 3 - 9,
        None => suffix.get(1..)?.parse().ok()?,
    };
    let scale = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    (digits <= FAST_DIGITS && scale >= -9).then_some((value, scale))
}

fn scaled(value: i64, by: i32) -> Option<i64> {
    let power = u32::try_from(by).ok().and_then(|by| 10i64.checked_pow(by));
    if value == 0 { Some(0).filter(|_| by >= 0) } else { value.checked_mul(power?) }
}

fn sum((one, one_scale): (i64, i32), (other, other_scale): (i64, i32)) -> Option<(i64, i32)> {
    if other == 0 {
        return Some((one, one_scale));
    }
    if one == 0 {
        return Some((other, other_scale));
    }
    let scale = one_scale.min(other_scale);
    let one = scaled(one, one_scale.checked_sub(scale)?)?;
    let other = scaled(other, other_scale.checked_sub(scale)?)?;
    Some((one.checked_add(other)?, scale))
}

fn quantity<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    Amount::parse(text).map(of_amount).map_err(EvalError::new)
}

fn of_amount<'a>(amount: Amount) -> Value<'a> {
    Value::Opaque(Opaque::Quantity(Arc::new(amount)))
}

fn is_quantity<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    Ok(Value::Bool(Amount::parse(text).is_ok()))
}

fn only<'x>(args: &'x [Value<'_>]) -> Result<&'x Amount, EvalError> {
    match args {
        [Value::Opaque(Opaque::Quantity(amount))] => Ok(amount),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn sign<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Int(only(args)?.compare(&Amount::of_int(0)) as i64))
}

fn as_float<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Double(only(args)?.as_float()))
}

fn as_integer<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let integer = only(args)?.as_integer();
    integer.map(Value::Int).ok_or_else(|| EvalError::new("cannot convert value to integer"))
}

fn is_integer<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(only(args)?.as_integer().is_some()))
}

fn compared<'a>(args: &[Value<'a>], part: fn(Ordering) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Quantity(one)), Value::Opaque(Opaque::Quantity(other))] => Ok(part(one.compare(other))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn total<'a>(args: &[Value<'a>], sign: i64) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Quantity(one)), Value::Opaque(Opaque::Quantity(other))] => {
            Ok(of_amount(one.plus(other, sign)))
        }
        [Value::Opaque(Opaque::Quantity(one)), Value::Int(other)] => {
            Ok(of_amount(one.plus(&Amount::of_int(*other), sign)))
        }
        _ => Err(EvalError::no_such_overload()),
    }
}

fn add<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    total(args, 1)
}

fn sub<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    total(args, -1)
}
