//! Kubernetes resource quantities: exact arithmetic on `500m`, `1.5Gi`, `2e3`.
//!
//! Follows the serialisation rules of apimachinery's `resource.Quantity`: binary suffixes Ki…Ei,
//! decimal suffixes n u m "" k M G T P E, decimal exponents, rounding away from zero below 1n,
//! binary amounts at most 2⁶³−1.

use std::{cmp::Ordering, fmt, str::FromStr};

#[cfg(test)]
mod tests;

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: expected a number with an optional suffix such as m, k, Mi or e3")]
pub struct ParseError {
    text: String,
}

/// How an amount is written; upstream's `Format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Decimal,
    Binary,
    Exponent,
}

/// An exact amount, with the style of suffix it was written in. It is exact up to 38 digits, beyond what anybody counts;
/// upstream's has no limit there.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    amount: Amount,
    style: Style,
}

/// `mantissa` · 10^`scale`. The scale of what was parsed is at least that of billionths.
#[derive(Debug, Clone, Copy)]
struct Amount {
    mantissa: i128,
    scale: i32,
}

const NANO: i32 = -9;
/// As many digits fit into a mantissa, whatever they are.
const DIGITS: usize = 38;
/// Leaves room to count on from there; upstream's own counter wraps around at twice as much.
const MAX_POWER: u32 = 1_000_000_000;
/// Larger binary amounts are clamped; upstream's `maxAllowed`.
const MAX_BINARY: u128 = i64::MAX as u128;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    const fn of(value: i64, scale: i32, style: Style) -> Self {
        Self { amount: Amount { mantissa: value as i128, scale }, style }
    }

    /// Whole units, such as bytes or cores.
    #[must_use]
    pub const fn from_units(units: i64) -> Self {
        Self::of(units, 0, Style::Decimal)
    }

    /// Whole units written with binary suffixes, as memory is.
    #[must_use]
    pub const fn from_bytes(bytes: i64) -> Self {
        Self::of(bytes, 0, Style::Binary)
    }

    /// Thousandths, such as millicores.
    #[must_use]
    pub const fn from_milli(milli: i64) -> Self {
        Self::of(milli, -3, Style::Decimal)
    }

    /// Billionths, such as nanocores.
    #[must_use]
    pub const fn from_nano(nano: i64) -> Self {
        Self::of(nano, NANO, Style::Decimal)
    }

    /// The same amount, written with binary suffixes where it is whole.
    #[must_use]
    pub const fn binary(self) -> Self {
        Self { style: Style::Binary, ..self }
    }

    /// Whole units, rounded away from zero; the nearest that there is of what 64 bits cannot hold (upstream's `Value`, which
    /// is then 0, and rounds negative amounts of many digits up).
    #[must_use]
    pub fn units(self) -> i64 {
        narrow(self.amount.rounded(0))
    }

    /// Thousandths, as `units` (upstream's `MilliValue`).
    #[must_use]
    pub fn milli(self) -> i64 {
        narrow(self.amount.rounded(-3))
    }

    /// The amount as a float; upstream's `AsApproximateFloat64`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "approximate")]
    pub fn approximate(self) -> f64 {
        let Amount { mantissa, scale } = self.amount;
        // A power that is read is the nearest float, one that is computed is not.
        let power = if scale == 0 { Ok(1.0) } else { format!("1e{scale}").parse() };
        if mantissa == 0 { 0.0 } else { mantissa as f64 * power.unwrap_or(f64::INFINITY) }
    }

    /// Whether the amount is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.amount.mantissa == 0
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.amount.mantissa < 0
    }

    /// The sum, in the style of `self`, or that of `other` if `self` is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let style = if self.is_zero() { other.style } else { self.style };
        Self { amount: self.amount.plus(other.amount), style }
    }

    /// The difference, in the style of `self`, or that of `other` if `self` is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let negated = Amount { mantissa: -other.amount.mantissa, ..other.amount };
        self.plus(Self { amount: negated, ..other })
    }
}

impl Amount {
    /// The mantissa at a scale, if all of it fits.
    fn at(self, scale: i32) -> Option<i128> {
        if self.mantissa == 0 {
            return Some(0);
        }
        10i128.checked_pow(self.scale.checked_sub(scale)?.try_into().ok()?)?.checked_mul(self.mantissa)
    }

    /// The mantissa at a scale, rounded away from zero, or the largest that there is.
    fn rounded(self, scale: i32) -> i128 {
        if self.scale >= scale {
            return self.at(scale).unwrap_or(if self.mantissa < 0 { i128::MIN } else { i128::MAX });
        }
        let divisor = 10i128.checked_pow(self.scale.abs_diff(scale));
        let sign = self.mantissa.signum();
        divisor.map_or(sign, |divisor| self.mantissa / divisor + if self.mantissa % divisor == 0 { 0 } else { sign })
    }

    /// The whole units, if there are no others.
    fn whole(self) -> Option<i128> {
        if self.scale >= 0 {
            return self.at(0);
        }
        let divisor = 10i128.checked_pow(self.scale.unsigned_abs())?;
        (self.mantissa % divisor == 0).then_some(self.mantissa / divisor)
    }

    fn plus(self, other: Self) -> Self {
        if self.mantissa == 0 || other.mantissa == 0 {
            return if self.mantissa == 0 { other } else { self };
        }
        let (coarse, fine) = if self.scale >= other.scale { (self, other) } else { (other, self) };
        coarse
            .at(fine.scale)
            .and_then(|mantissa| mantissa.checked_add(fine.mantissa))
            .map_or_else(|| Self::sum_of_leading_digits(self, other), |mantissa| Self { mantissa, scale: fine.scale })
    }

    /// The sum of what has more digits than fit: those at the end are left out.
    fn sum_of_leading_digits(one: Self, other: Self) -> Self {
        let (one, other) = (one.widened(), other.widened());
        let scale = one.scale.max(other.scale);
        let at_scale =
            |amount: Self| 10i128.checked_pow(amount.scale.abs_diff(scale)).map_or(0, |by| amount.mantissa / by);
        Self { mantissa: at_scale(one) + at_scale(other), scale }
    }

    /// The same amount with as many digits as leave room for a sum.
    fn widened(self) -> Self {
        let Self { mut mantissa, mut scale } = self;
        let limit = 10u128.pow(37);
        while mantissa.unsigned_abs() >= limit {
            (mantissa, scale) = (mantissa / 10, scale.saturating_add(1));
        }
        while mantissa.unsigned_abs() < limit / 10 && scale > i32::MIN {
            (mantissa, scale) = (mantissa * 10, scale - 1);
        }
        Self { mantissa, scale }
    }

    /// The same amount with the shortest mantissa that leaves a scale which is a multiple of three, as the digits of the
    /// mantissa.
    fn canonical(self) -> (String, i32) {
        let Self { mut mantissa, mut scale } = self;
        while mantissa != 0 && mantissa % 10 == 0 {
            (mantissa, scale) = (mantissa / 10, scale.saturating_add(1));
        }
        let zeros = scale.rem_euclid(3);
        let zeros_text = "0".repeat(usize::try_from(zeros).unwrap_or(0));
        (format!("{mantissa}{zeros_text}"), scale.saturating_sub(zeros))
    }
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text).ok_or_else(|| ParseError { text: text.to_owned() })
    }
}

/// The digits before and after the point, without zeros that say nothing, and the suffix.
fn split(unsigned: &str) -> (&str, &str, &str) {
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    (whole.trim_start_matches('0'), fraction, suffix)
}

/// As upstream, a text without digits is zero, if only there is a sign, a point or a suffix.
fn parse(text: &str) -> Option<Quantity> {
    let negative = text.starts_with('-');
    let (whole, fraction, suffix) = split(text.strip_prefix(['+', '-']).unwrap_or(text));
    let fraction = fraction.trim_end_matches('0');
    // Digits of more would be left out, and another amount written back.
    if text.is_empty() || fraction.contains('.') || whole.len() + fraction.len() > DIGITS {
        return None;
    }
    let digits = [whole, fraction].concat();
    let mantissa = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? };
    let places = i32::try_from(fraction.len()).ok()?;
    let (amount, style) = match scale_of(suffix)? {
        // Of these upstream reads a number in another way, which knows no empty one.
        Scale::Binary(50..) if !text.contains(|c: char| c.is_ascii_digit()) => return None,
        Scale::Binary(bits) => binary(whole, fraction, bits)?,
        Scale::Decimal(power, style) => {
            let scale = power.checked_sub(places)?;
            let amount = Amount { mantissa, scale };
            // Rounded up, so that a positive amount stays positive.
            let amount = if scale < NANO { Amount { mantissa: amount.rounded(NANO), scale: NANO } } else { amount };
            (amount, style)
        }
    };
    let mantissa = if negative { -amount.mantissa } else { amount.mantissa };
    Some(Quantity { amount: Amount { mantissa, ..amount }, style })
}

/// `whole`.`fraction` · 2^`bits`.
fn binary(whole: &str, fraction: &str, bits: u32) -> Option<(Amount, Style)> {
    let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let (mut units, mut rest) = (number(whole)?.min(MAX_BINARY), number(fraction)?);
    let one = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    for _ in 0..bits {
        rest *= 2;
        let carry = rest >= one;
        rest -= if carry { one } else { 0 };
        units = (units * 2 + u128::from(carry)).min(MAX_BINARY);
    }
    let style = if units == 0 && rest != 0 { Style::Decimal } else { Style::Binary };
    let units = i128::try_from(units).ok()?;
    if rest == 0 || units == i128::from(i64::MAX) {
        return Some((Amount { mantissa: units, scale: 0 }, style));
    }
    let rest = Amount { mantissa: i128::try_from(rest).ok()?, scale: -i32::try_from(fraction.len()).ok()? };
    Some((Amount { mantissa: units * 1_000_000_000 + rest.rounded(NANO), scale: NANO }, style))
}

/// Whether upstream writes a quantity as it has read it, which it does to one without a shorter form: to a decimal number with
/// a multiple of three decimal places that does not end in three zeros, and to a whole binary one that is no multiple of
/// eight. So is `92.194` left as it is, while `0.1` becomes `100m`.
#[must_use]
pub fn is_written_as_read(text: &str) -> bool {
    let (whole, fraction, suffix) = split(text.strip_prefix(['+', '-']).unwrap_or(text));
    let digits = whole.len() + fraction.len();
    match scale_of(suffix) {
        Some(Scale::Decimal(power, _)) => {
            let power = power.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
            let ends_in_zeros = [whole, fraction].concat().ends_with("000");
            !whole.is_empty() && digits <= 18 && power >= NANO && power % 3 == 0 && !ends_in_zeros
        }
        // Upstream's estimate of what fits into 64 bits.
        Some(Scale::Binary(bits)) if fraction.is_empty() && digits + bits as usize * 3 / 10 <= 14 => {
            whole.parse::<u64>().is_ok_and(|number| number % 8 != 0)
        }
        _ => false,
    }
}

enum Scale {
    /// The exponent of two.
    Binary(u32),
    /// The exponent of ten.
    Decimal(i32, Style),
}

fn scale_of(suffix: &str) -> Option<Scale> {
    if let Some((_, bits)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Some(Scale::Binary(*bits));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some(Scale::Decimal(*power, Style::Decimal));
    }
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (power.unsigned_abs() <= MAX_POWER).then_some(Scale::Decimal(power, Style::Exponent))
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix that leaves a whole number, or an exponent where no suffix is large enough
    /// (upstream then writes a thousandth, or less, of the amount).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.style == Style::Binary
            && let Some(units) = self.amount.whole().filter(|units| units.unsigned_abs() >= 1024)
        {
            let (suffix, bits) =
                BINARY.iter().rev().find(|(_, bits)| units % (1i128 << bits) == 0).copied().unwrap_or(("", 0));
            return write!(f, "{}{suffix}", units >> bits);
        }
        let (number, exponent) = self.amount.canonical();
        match DECIMAL.iter().find(|(_, power)| *power == exponent) {
            Some((suffix, _)) if self.style != Style::Exponent || exponent == 0 => write!(f, "{number}{suffix}"),
            _ => write!(f, "{number}e{exponent}"),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other) = (self.amount, other.amount);
        let scale = one.scale.min(other.scale);
        match (one.at(scale), other.at(scale)) {
            (Some(one), Some(other)) => one.cmp(&other),
            // One of the two is at its own scale; the other does not fit there, and so is larger, below zero or above.
            (None, _) => one.mantissa.cmp(&0),
            (_, None) => 0.cmp(&other.mantissa),
        }
    }
}
