//! Kubernetes resource quantities: exact arithmetic on `500m`, `1.5Gi`, `2e3`.
//!
//! Follows the serialisation rules of apimachinery's `resource.Quantity`: binary suffixes Ki…Ei,
//! decimal suffixes n u m "" k M G T P E, decimal exponents, rounding away from zero below 1n.

use std::{cmp::Ordering, fmt, str::FromStr};

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: expected a number with an optional suffix such as m, k, Mi or e3")]
pub struct ParseError {
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Decimal,
    Binary,
    Exponent,
}

/// An exact amount in units of 10⁻⁹, with the style of suffix it was written in.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    style: Style,
}

const NANO: i128 = 1_000_000_000;
/// Larger magnitudes are clamped, as upstream clamps to the range of 64 bits.
const LIMIT: i128 = (i64::MAX as i128) * NANO;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Whole units, such as bytes or cores.
    #[must_use]
    pub const fn from_units(units: i64) -> Self {
        Self { nanos: units as i128 * NANO, style: Style::Decimal }
    }

    /// Whole units written with binary suffixes, as memory is.
    #[must_use]
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nanos: bytes as i128 * NANO, style: Style::Binary }
    }

    /// Thousandths, such as millicores.
    #[must_use]
    pub const fn from_milli(milli: i64) -> Self {
        Self { nanos: milli as i128 * 1_000_000, style: Style::Decimal }
    }

    /// The same amount, written with binary suffixes where it is whole.
    #[must_use]
    pub const fn binary(self) -> Self {
        Self { style: Style::Binary, ..self }
    }

    /// Whole units, rounded up.
    #[must_use]
    pub fn units(self) -> i64 {
        narrow(ceil_div(self.nanos, NANO))
    }

    /// Thousandths, rounded up.
    #[must_use]
    pub fn milli(self) -> i64 {
        narrow(ceil_div(self.nanos, 1_000_000))
    }

    /// Billionths, such as nanocores.
    #[must_use]
    pub const fn from_nano(nano: i64) -> Self {
        Self { nanos: nano as i128, style: Style::Decimal }
    }

    /// The amount as a float; upstream's `AsApproximateFloat64`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "approximate")]
    pub fn approximate(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Whether the amount is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The sum, keeping the style of `self`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_add(other.nanos).clamp(-LIMIT, LIMIT), style: self.style }
    }

    /// The difference, keeping the style of `self`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos).clamp(-LIMIT, LIMIT), style: self.style }
    }
}

fn ceil_div(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
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

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (scale2, scale10, style) = scale_of(suffix)?;

    // digits * 10^-len(fraction) * 2^scale2 * 10^(scale10 + 9) nanos
    let mut mantissa: i128 = 0;
    let mut exponent = scale10 + 9;
    let mut lost = false;
    for (in_fraction, digit) in whole.bytes().map(|b| (false, b)).chain(fraction.bytes().map(|b| (true, b))) {
        let value = i128::from(digit - b'0');
        if mantissa < 10i128.pow(24) {
            mantissa = mantissa * 10 + value;
            exponent -= i32::from(in_fraction);
        } else {
            lost |= value != 0;
            exponent += i32::from(!in_fraction);
        }
    }
    let mut nanos = mantissa.checked_shl(0)?;
    if mantissa != 0 {
        nanos = if exponent >= 0 {
            10i128.checked_pow(exponent.unsigned_abs()).and_then(|p| mantissa.checked_mul(p)).unwrap_or(LIMIT)
        } else {
            // Multiply before dividing so that 0.5Ki keeps its half.
            let scaled = mantissa.checked_mul(1i128 << scale2).unwrap_or(i128::MAX);
            let divided = 10i128.checked_pow(exponent.unsigned_abs()).map_or(0, |p| ceil_div(scaled, p));
            divided.max(1)
        };
        if exponent >= 0 {
            nanos = nanos.checked_mul(1i128 << scale2).unwrap_or(LIMIT);
        }
        nanos = nanos.saturating_add(i128::from(lost)).min(LIMIT);
    }
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, style })
}

/// Whether upstream writes a quantity as it has read it, which it does to a decimal one without a shorter form: of a number
/// with a multiple of three decimal places that does not end in three zeros. So is `92.194` left as it is, while `0.1` becomes
/// `100m`.
#[must_use]
pub fn is_written_as_read(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let Some((_, power, Style::Decimal | Style::Exponent)) = scale_of(suffix) else { return false };
    let digits = [whole.trim_start_matches('0'), fraction].concat();
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    !whole.trim_start_matches('0').is_empty()
        && digits.len() <= 18
        && power.saturating_sub(places) >= -9
        && power.saturating_sub(places) % 3 == 0
        && !digits.ends_with("000")
}

fn scale_of(suffix: &str) -> Option<(u32, i32, Style)> {
    if let Some((_, bits)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Some((*bits, 0, Style::Binary));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some((0, *power, Style::Decimal));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    exponent.parse::<i32>().ok().filter(|e| e.abs() <= 40).map(|e| (0, e, Style::Exponent))
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.style == Style::Binary && self.nanos % NANO == 0 {
            let units = self.nanos / NANO;
            if units.abs() >= 1024 {
                let (suffix, bits) =
                    BINARY.iter().rev().find(|(_, bits)| units % (1i128 << bits) == 0).copied().unwrap_or(("", 0));
                return write!(f, "{}{suffix}", units >> bits);
            }
            return write!(f, "{units}");
        }
        for (suffix, power) in DECIMAL.iter().rev() {
            let unit = 10i128.pow(power.unsigned_abs());
            let unit = if *power >= 0 { unit * NANO } else { NANO / unit };
            if self.nanos % unit == 0 {
                return match (self.style, power) {
                    (Style::Exponent, p) if *p != 0 => write!(f, "{}e{p}", self.nanos / unit),
                    _ => write!(f, "{}{suffix}", self.nanos / unit),
                };
            }
        }
        write!(f, "{}n", self.nanos)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
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
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_forms() {
        for (text, canonical) in [
            ("0", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1000m", "1"),
            ("0.5Ki", "512"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1536Mi", "1536Mi"),
            ("1.5Gi", "1536Mi"),
            ("-5Mi", "-5Mi"),
            ("2e3", "2e3"),
            ("1E", "1E"),
            ("12.5u", "12500n"),
            ("0.0000000001", "1n"),
            (".5", "500m"),
            ("5.", "5"),
        ] {
            assert_eq!(text.parse::<Quantity>().map(|q| q.to_string()).as_deref(), Ok(canonical), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "-", ".", "1.2.3", "1KI", "1kb", "abc", "1 ", "1e", "1e99", "--1"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn rounds_up_to_units_and_milli() {
        let q: Quantity = "1.0001".parse().unwrap();
        assert_eq!((q.units(), q.milli()), (2, 1001));
        let q: Quantity = "100Mi".parse().unwrap();
        assert_eq!(q.units(), 104_857_600);
        for (text, float) in [("500u", 0.0005), ("-1500m", -1.5), ("1Ki", 1024.0)] {
            let approximate = text.parse::<Quantity>().unwrap().approximate();
            assert!((approximate - float).abs() < 1e-12, "{text}: {approximate}");
        }
    }

    proptest! {
        #[test]
        fn canonical_form_reads_back_equal(number in -1_000_000_000i64..1_000_000_000, suffix in "(n|u|m||k|M|G|Ki|Mi|Gi)") {
            let q: Quantity = format!("{number}{suffix}").parse().unwrap();
            let again: Quantity = q.to_string().parse().unwrap();
            prop_assert_eq!(q, again);
        }

        #[test]
        fn never_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn never_panics_on_numbers(text in "[-+]?[0-9.]{0,60}(e-?[0-9]{0,3}|Ei|E|n)?") {
            if let Ok(q) = text.parse::<Quantity>() {
                let _ = q.to_string();
            }
        }
    }
}
