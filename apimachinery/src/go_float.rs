//! Floats as Go writes them (`strconv.FormatFloat`).

/// `%g` with as many digits as identify the number: an exponent below 1e-4 and from 1e6 on.
pub fn general(value: f64) -> String {
    if let Some(text) = special(value) {
        return text.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) { format!("{value}") } else { format!("{mantissa}e{}", signed(exponent)) }
}

/// `%.*e`: one digit before the point, at least two in the exponent.
pub fn exponent(value: f64, precision: usize) -> String {
    if let Some(text) = special(value) {
        return text.to_owned();
    }
    let scientific = format!("{value:.precision$e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    format!("{mantissa}e{}", signed(exponent.parse().unwrap_or(0)))
}

fn signed(exponent: i32) -> String {
    format!("{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// What is no number.
pub fn special(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "+Inf" } else { "-Inf" })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (100_000.0, "100000"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1_234_567.0, "1.234567e+06"),
            (1e21, "1e+21"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(general(value), text);
        }
        assert_eq!(exponent(1234.5, 2), "1.23e+03");
    }
}
