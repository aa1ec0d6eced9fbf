//! Formats of texts, as upstream knows them (`k8s.io/kube-openapi/pkg/validation/strfmt`).

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    MAX_DEPTH, duration, names,
    schema::{Kind, Schema, Validations, scalars},
};

/// Formats of texts and numbers that upstream knows.
const KNOWN: [&str; 35] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "date-time",
    "double",
    "duration",
    "email",
    "float",
    "hexcolor",
    "hostname",
    "int32",
    "int64",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8s-long-name",
    "k8s-short-name",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "bson-object-id",
    "credit-card",
];

/// Adds the unknown formats of a schema.
pub(super) fn unknown(schema: &Schema, found: &mut BTreeSet<String>, depth: usize) {
    if depth > MAX_DEPTH || matches!(schema.kind, Kind::Named(_)) {
        return;
    }
    if let Some(validations) = schema.validations.as_deref() {
        unknown_of(validations, found);
    }
    match &schema.kind {
        Kind::Object(object) => {
            for property in object.properties.values() {
                unknown(&property.schema, found, depth + 1);
            }
        }
        Kind::List(inside) | Kind::Map(inside) => unknown(inside, found, depth + 1),
        _ => {}
    }
}

fn unknown_of(validations: &Validations, found: &mut BTreeSet<String>) {
    found.extend(
        validations.format.iter().filter(|format| !KNOWN.contains(&&***format)).map(|format| format.to_string()),
    );
}

/// Whether a text has a format. One that is not known takes any.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "bsonobjectid" => text.len() == 24 && is_hex(text),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => is_ipv4(text),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some(b'3')),
        "uuid4" => is_uuid(text, Some(b'4')),
        "uuid5" => is_uuid(text, Some(b'5')),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => is_ssn(text),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && is_hex(digits)
        }
        "rgbcolor" => is_rgb_color(text),
        "byte" => !text.is_empty() && scalars::bytes(text).is_ok(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => scalars::time(&text.to_ascii_uppercase()).is_some(),
        "duration" => is_duration(text),
        "k8sshortname" => names::label(text).is_none(),
        "k8slongname" => names::subdomain(text).is_none(),
        _ => true,
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A URI as in a request: with a scheme, or a path from the root.
fn is_request_uri(text: &str) -> bool {
    let plain = !text.bytes().any(|b| b.is_ascii_control() || b == b' ');
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(fine) && !rest.is_empty()
    });
    plain && (text.starts_with('/') || scheme)
}

/// An address, with or without a name before it.
fn is_email(text: &str) -> bool {
    let address = match text.trim_end().strip_suffix('>') {
        Some(rest) => match rest.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text.trim(),
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let fine = |c: char| !c.is_whitespace() && !c.is_control() && !"()<>[]:;@\\,\"".contains(c);
    let dots = |part: &str| part.split('.').all(|atom| !atom.is_empty() && atom.chars().all(fine));
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || dots(local)) && dots(domain)
}

fn is_hostname(text: &str) -> bool {
    let wide = |c: char| c.is_ascii_alphanumeric() || (!c.is_ascii() && c.is_alphabetic());
    let labels: Vec<&str> = text.split('.').collect();
    if text.len() > 255 || labels.iter().any(|label| label.is_empty() || label.len() > 63) {
        return false;
    }
    let (last, first) = labels.split_last().unwrap_or((&"", &[]));
    if first.is_empty() {
        // Only the second character of a name without dots may be a hyphen.
        let mut characters = last.chars();
        let begins = characters.next().is_some_and(wide);
        let rest = characters.as_str();
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        return begins && rest.chars().all(wide);
    }
    let label =
        |label: &&str| label.starts_with(wide) && label.ends_with(wide) && label.chars().all(|c| wide(c) || c == '-');
    first.iter().all(label) && last.chars().count() >= 2 && last.chars().all(|c| c.is_alphabetic())
}

/// Four numbers; upstream takes leading zeros.
fn is_ipv4(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let number = |part: &&str| {
        (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()) && part.parse::<u8>().is_ok()
    };
    text.parse::<Ipv4Addr>().is_ok() || (parts.len() == 4 && parts.iter().all(number))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let max = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) if is_ipv4(address) => 32,
        Err(_) => return false,
    };
    bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= max)
}

/// 6, 8 or 20 bytes, in pairs with `:` or `-`, or in fours with dots.
fn is_mac(text: &str) -> bool {
    let (separator, digits) = match text.find([':', '-', '.']) {
        Some(at) if text[at..].starts_with('.') => ('.', 4),
        Some(at) => (text[at..].chars().next().unwrap_or(':'), 2),
        None => return false,
    };
    let parts: Vec<&str> = text.split(separator).collect();
    let bytes = parts.len() * digits / 2;
    matches!(bytes, 6 | 8 | 20) && parts.iter().all(|part| part.len() == digits && is_hex(part))
}

/// 32 digits in the usual groups, of which each hyphen may be missing; some versions say what they are.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut rest = text.as_bytes();
    let mut digits = Vec::with_capacity(32);
    for (at, group) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(group) else { return false };
        digits.extend_from_slice(group);
        rest = after;
    }
    let variant = matches!(digits[16].to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b');
    rest.is_empty()
        && digits.iter().all(u8::is_ascii_hexdigit)
        && version.is_none_or(|version| digits[12] == version && (version == b'3' || variant))
}

fn without_separators(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = without_separators(text);
    let value = |(at, b): (usize, u8)| match b {
        b'0'..=b'9' => Some(usize::from(b - b'0')),
        b'X' if at == 9 => Some(10),
        _ => None,
    };
    let values: Option<Vec<usize>> = digits.bytes().enumerate().map(value).collect();
    let sum = |values: Vec<usize>| values.iter().enumerate().map(|(at, value)| (at + 1) * value).sum::<usize>();
    digits.len() == 10 && values.is_some_and(|values| sum(values) % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let digits = without_separators(text);
    if digits.len() != 13 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let weighted = |(at, b): (usize, u8)| u32::from(b - b'0') * if at % 2 == 0 { 1 } else { 3 };
    digits.bytes().enumerate().map(weighted).sum::<u32>() % 10 == 0
}

/// 13 to 19 digits with the check digit of Luhn.
fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
    if !(13..=19).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let weighted = |(at, b): (usize, u8)| match (at % 2, u32::from(b - b'0')) {
        (0, digit) => digit,
        (_, digit) if digit > 4 => digit * 2 - 9,
        (_, digit) => digit * 2,
    };
    digits.bytes().rev().enumerate().map(weighted).sum::<u32>() % 10 == 0
}

/// Nine digits, in groups of 3, 2 and 4 with hyphens or blanks.
fn is_ssn(text: &str) -> bool {
    let parts: Vec<&str> = text.split(['-', ' ']).collect();
    let digits = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([3, 2, 4]) && parts.iter().all(digits)
}

fn is_rgb_color(text: &str) -> bool {
    let Some(inside) = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')) else { return false };
    let parts: Vec<&str> = inside.split(',').map(str::trim).collect();
    let byte = |part: &&str| part.bytes().all(|b| b.is_ascii_digit()) && part.parse::<u8>().is_ok();
    parts.len() == 3 && parts.iter().all(byte)
}

/// Go's form, or a number and the name of a unit.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 31] = [
        "ns",
        "nano",
        "nanos",
        "nanosecond",
        "nanoseconds",
        "us",
        "µs",
        "micro",
        "micros",
        "microsecond",
        "microseconds",
        "ms",
        "milli",
        "millis",
        "millisecond",
        "milliseconds",
        "s",
        "sec",
        "secs",
        "second",
        "seconds",
        "m",
        "min",
        "mins",
        "minute",
        "minutes",
        "h",
        "hr",
        "hour",
        "hours",
        "d",
    ];
    const LONG: [&str; 6] = ["day", "days", "w", "wk", "week", "weeks"];
    if duration::parse(text).is_some() {
        return true;
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_lowercase();
    !number.is_empty() && number.len() < 10 && (UNITS.contains(&&*unit) || LONG.contains(&&*unit))
}
