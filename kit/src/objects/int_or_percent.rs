//! Numbers that may be percentages of a total, such as `maxSurge: 25%`. Pure.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Which way a percentage is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the next greater number.
    Up,
    /// To the next smaller number.
    Down,
}

/// The number of a percentage such as `25%`.
#[must_use]
pub fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty())?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(i64::MAX))
}

/// The number that `value` says; `None` when it is neither a number nor a percentage. Upstream's
/// `GetScaledValueFromIntOrPercent`.
#[must_use]
pub fn scaled(value: &IntOrString, total: i32, rounding: Rounding) -> Option<i32> {
    let text = match value {
        IntOrString::Int(number) => return Some(*number),
        IntOrString::String(text) => text,
    };
    let product = percent(text)?.checked_mul(i64::from(total))?;
    let number = match rounding {
        Rounding::Up => product.div_euclid(100) + i64::from(product.rem_euclid(100) != 0),
        Rounding::Down => product.div_euclid(100),
    };
    i32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_either_way() {
        let text = |text: &str| IntOrString::String(text.into());
        for (value, total, up, down) in [
            (IntOrString::Int(3), 10, Some(3), Some(3)),
            (text("25%"), 10, Some(3), Some(2)),
            (text("25%"), 4, Some(1), Some(1)),
            (text("0%"), 4, Some(0), Some(0)),
            (text("100%"), 7, Some(7), Some(7)),
            (text("1%"), i32::MAX, Some(21_474_837), Some(21_474_836)),
            (text("25"), 10, None, None),
            (text("x%"), 10, None, None),
            (text("%"), 10, None, None),
            (text("-1%"), 10, None, None),
            (text("9223372036854775807%"), 10, None, None),
        ] {
            let got = (scaled(&value, total, Rounding::Up), scaled(&value, total, Rounding::Down));
            assert_eq!(got, (up, down), "{value:?} of {total}");
        }
    }
}
