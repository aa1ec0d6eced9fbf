use super::*;
use proptest::prelude::*;
use windlass_fixtures::facts::{rows, text_of};

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
    for text in ["", "1.2.3", "1KI", "1kb", "abc", "1 ", "1e", "e", "--1", "1e3000000000", "1-3", "1Ki5", "Pi", "-.Ei"]
    {
        assert!(text.parse::<Quantity>().is_err(), "{text}");
    }
}

#[test]
fn what_has_no_shorter_form_stays_as_it_was_written() {
    for text in ["92.194", "+5", "5.Ki", "0005Ki", "1200E"] {
        assert!(is_written_as_read(text), "{text}");
    }
    for text in ["0.5", "1000", "8Ki", "5.0Ki", "1.5", "1000E"] {
        assert!(!is_written_as_read(text), "{text}");
    }
}

/// Upstream's quirks, asked of its own parser: a text without digits is zero.
#[test]
fn a_text_without_digits_is_zero() {
    for text in ["-", "+", ".", "-.", "m", "Ki", "E", "e3", "+.Gi"] {
        assert_eq!(text.parse::<Quantity>().map(|q| q.to_string()).as_deref(), Ok("0"), "{text}");
    }
}

#[test]
fn what_64_bits_cannot_hold_is_kept() {
    let of = |text: &str| text.parse::<Quantity>().unwrap();
    assert!(of("12E") > of("10E") && of("1e99") > of("12E") && of("-1e99") < of("-12E"));
    assert_eq!((of("12E").units(), of("-12E").milli(), of("1e99").units()), (i64::MAX, i64::MIN, i64::MAX));
    for (text, canonical) in
        [("12E", "12E"), ("1e99", "1e99"), ("1e100", "10e99"), ("1000E", "1e21"), ("20Ei", "9223372036854775807")]
    {
        assert_eq!(of(text).to_string(), canonical, "{text}");
    }
    assert_eq!(of("10E").plus(of("3E")), of("13E"));
    assert_eq!(of("1e30").plus(of("1m")).minus(of("1e30")), of("1m"));
    // No digits are left for one among 99 of them, but none of the others is lost.
    assert_eq!(of("1e99").plus(of("1")), of("1e99"));
    assert_eq!(of("1e99").minus(of("1e99")), of("0"));
    let many = of(&"9".repeat(38));
    let (twice, once) = (many.plus(many), many.approximate());
    assert!(twice > many && (twice.minus(many).approximate() / once - 1.0).abs() < 1e-15);
    assert!("1".repeat(39).parse::<Quantity>().is_err(), "would be written back as another amount");
}

#[test]
fn a_binary_amount_that_is_no_multiple_of_1024_may_have_a_decimal_suffix() {
    assert_eq!(Quantity::from_bytes(1000).to_string(), "1k");
    assert_eq!("0.9765625Ki".parse::<Quantity>().unwrap().to_string(), "1k");
    assert_eq!(Quantity::from_bytes(2000).to_string(), "2000");
}

#[test]
fn a_sum_has_the_style_of_what_is_not_zero() {
    let (none, some) = (Quantity::from_units(0), Quantity::from_bytes(2048));
    assert_eq!([none.plus(some), some.plus(none), none.minus(some)].map(|q| q.to_string()), ["2Ki", "2Ki", "-2Ki"]);
}

#[test]
fn rounds_away_from_zero_to_units_and_milli() {
    assert_eq!(("-1.5".parse::<Quantity>().unwrap().units(), "-10u".parse::<Quantity>().unwrap().milli()), (-2, -1));
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
    fn never_panics_on_numbers(text in "[-+]?[0-9.]{0,60}(e-?[0-9]{0,12}|Ei|E|n)?") {
        if let Ok(q) = text.parse::<Quantity>() {
            let _ = q.to_string();
        }
    }
}

static TABLE: &str = include_str!("../../../facts/quantity.tsv");

fn style(name: &str) -> Style {
    match name {
        "DecimalSI" | "\"\"" => Style::Decimal,
        "BinarySI" => Style::Binary,
        _ => Style::Exponent,
    }
}

fn amount(digits: &str, exponent: &str) -> Quantity {
    let amount = Amount { mantissa: digits.parse().unwrap(), scale: exponent.parse().unwrap() };
    Quantity { amount, style: Style::Decimal }
}

fn styled(digits: &str, exponent: &str, format: &str) -> Quantity {
    Quantity { style: style(format), ..amount(digits, exponent) }
}

fn read(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn parses(text: &str, expected: Quantity, format: &str) {
    let negative = Quantity::from_units(0).minus(expected);
    for (text, expected) in
        [(text.to_owned(), expected), (format!("+{text}"), expected), (format!("-{text}"), negative)]
    {
        assert_eq!((read(&text), read(&text).style), (expected, style(format)), "{text}");
    }
}

/// Both are equal, however they were made, and in both orders.
fn compares(one: Quantity, other: Quantity, order: &str) {
    let order = order.parse::<i32>().unwrap().cmp(&0);
    assert_eq!((one.cmp(&other), other.cmp(&one)), (order, order.reverse()), "{one} {other}");
}

fn is_written(amount: Quantity, text: &str, other: &str) {
    assert_eq!(amount.to_string(), text);
    assert_eq!(read(text).to_string(), text);
    if !other.is_empty() {
        assert_eq!(read(other).to_string(), text, "{other}");
    }
    if !amount.is_zero() {
        assert_eq!(
            Quantity { style: amount.style, ..Quantity::from_units(0).minus(amount) }.to_string(),
            format!("-{text}")
        );
    }
}

fn in_json(json: &str, text: &str) {
    let mut quota =
        serde_json::json!({"spec": {"hard": {"cpu": serde_json::from_str::<serde_json::Value>(json).unwrap()}}});
    let schema = crate::testing::schema("core/v1.ResourceQuota");
    assert!(crate::schema::check(&schema, &quota, "ResourceQuota").wrong.is_empty(), "{json}");
    crate::schema::canonicalize(&schema, &mut quota);
    assert_eq!(quota["spec"]["hard"]["cpu"], text, "{json}");
}

fn holds(row: &[&str]) {
    match *row {
        ["TestQuantityParse", text, "refused"] => assert!(text_of(text).parse::<Quantity>().is_err(), "{text}"),
        ["TestQuantityParse", text, digits, exponent, format] => parses(text, amount(digits, exponent), format),
        ["TestQuantityRoundUp", text, scale, digits, exponent, exact] => {
            let (from, scale, rounded) = (read(text), scale.parse().unwrap(), amount(digits, exponent));
            let got = Quantity { amount: Amount { mantissa: from.amount.rounded(scale), scale }, ..from };
            assert_eq!((got, got == from), (rounded, exact == "true"), "{row:?}");
        }
        ["TestQuantityCmp", one, other, order] => compares(read(one), read(other), order),
        ["TestQuantityCmpInt64AndDec", one, one_exponent, other, other_exponent, order] => {
            compares(amount(one, one_exponent), amount(other, other_exponent), order);
        }
        ["TestQuantityString", digits, exponent, format, text, other] => {
            is_written(styled(digits, exponent, format), text, &text_of(other));
        }
        ["TestQuantityParseEmit", text, canonical] => {
            assert_eq!(read(text).to_string(), canonical);
            assert_eq!(read(&format!("-{text}")).to_string(), format!("-{canonical}"));
        }
        ["TestMilliNewSet", milli, format, text] => assert_eq!(styled(milli, "-3", format).to_string(), text),
        ["TestNewSet", units, format, text] => {
            let value = styled(units, "0", format);
            assert_eq!((value.to_string().as_str(), read(text).units()), (text, value.units()));
        }
        ["TestNewScaledSet", digits, scale, text] => assert_eq!(amount(digits, scale).to_string(), text),
        ["TestScaledValue", from, to, value] => {
            assert_eq!(narrow(amount("1", from).amount.rounded(to.parse().unwrap())).to_string(), value);
        }
        ["TestJSONWhitespace", json, text] => in_json(&text_of(json), text),
        ["TestAdd", a, ae, af, b, be, bf, sum, se, sf] => {
            let got = styled(a, ae, af).plus(styled(b, be, bf));
            assert_eq!((got, got.style), (amount(sum, se), style(sf)), "{row:?}");
        }
        ["TestSub", a, ae, af, b, be, bf, rest, re, rf] => {
            let got = styled(a, ae, af).minus(styled(b, be, bf));
            assert_eq!((got, got.style), (amount(rest, re), style(rf)), "{row:?}");
        }
        ["TestQuantityNeg", digits, exponent, text] => {
            assert_eq!(Quantity::from_units(0).minus(amount(digits, exponent)).to_string(), text);
        }
        ["TestQuantityAsApproximateFloat64", digits, exponent, _, float] => {
            assert_eq!(
                amount(digits, exponent).approximate().to_bits(),
                float.parse::<f64>().unwrap().to_bits(),
                "{row:?}"
            );
        }
        ["TestStringQuantityAsApproximateFloat64", text, float] => {
            assert_eq!(read(text).approximate().to_bits(), float.parse::<f64>().unwrap().to_bits(), "{text}");
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn as_upstreams_tests_say() {
    let seen = rows(TABLE).inspect(|row| holds(row)).count();
    assert!(seen > 290, "{seen}");
}
