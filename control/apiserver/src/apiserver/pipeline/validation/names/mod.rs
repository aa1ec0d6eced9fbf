//! Names, labels, addresses: each check gives upstream's words for what is wrong, or nothing.

#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr};

use serde_json::Value;
use windlass_kit::net::{Cidr, parse_ip};

use super::errors::Errors;
pub(crate) use windlass_apimachinery::names::{
    dns1035_label, label, label_value, path_segment, qualified, qualified_problems, subdomain,
};

const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";
const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

const SEARCH: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";

fn no_more_than(bytes: usize) -> String {
    format!("must be no more than {bytes} characters")
}

/// A key in a ConfigMap or Secret.
pub(crate) fn config_key(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some(no_more_than(253));
    }
    let fine = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    match text {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        dots if dots.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => (!fine).then(|| KEY.to_owned()),
    }
}

/// The name of an environment variable.
pub(crate) fn variable(text: &str) -> Option<String> {
    (!text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')).then(|| ENV.to_owned())
}

/// The name of a port, as IANA has them.
pub(crate) fn port_name(text: &str) -> Option<String> {
    port_name_problems(text).first().map(|why| (*why).to_owned())
}

/// All that is wrong with the name of a port.
pub(crate) fn port_name_problems(text: &str) -> Vec<&'static str> {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let checks = [
        (text.len() > 15, "must be no more than 15 characters"),
        (
            text.is_empty() || !text.bytes().all(fine),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (!text.bytes().any(|b| b.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (text.contains("--"), "must not contain consecutive hyphens"),
        (text.starts_with('-') || text.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    checks.into_iter().filter(|(is, _)| *is).map(|(_, why)| why).collect()
}

/// A domain that names are looked up in: underscores are allowed.
pub(crate) fn search_domain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some(no_more_than(253));
    }
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let fine = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let is_label = |label: &str| {
        let bytes = label.strip_prefix('_').unwrap_or(label).as_bytes();
        bytes.iter().all(fine) && end(bytes.first()) && end(bytes.last())
    };
    (!text.split('.').all(is_label)).then(|| SEARCH.to_owned())
}

/// An IP address, in no form that others read as another one.
pub(crate) fn ip(text: &str) -> Option<String> {
    let why = match text.parse::<IpAddr>() {
        Err(_) if parse_ip(text).is_some() => "must not have leading 0s",
        Err(_) => IP,
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return None,
    };
    Some(why.to_owned())
}

/// An IP address in its canonical form.
pub(crate) fn canonical_ip(text: &str) -> Option<String> {
    ip(text).or_else(|| {
        let canonical = parse_ip(text)?.to_string();
        (canonical != text).then(|| format!("must be in canonical form ({canonical:?})"))
    })
}

/// The warning about an address in a non-canonical form (upstream: `GetWarningsForIP`).
pub(crate) fn ip_warning(field: impl fmt::Display, text: &str) -> Option<String> {
    let read = parse_ip(text)?;
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => None,
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => (read.to_string() != text).then(|| {
            format!("{field}: IPv6 address {text:?} should be in RFC 5952 canonical format ({:?})", read.to_string())
        }),
        _ => Some(format!("{field}: non-standard IP address {text:?} is invalid: use {:?}", read.to_string())),
    }
}

/// The warnings about a range in a non-canonical form (upstream: `GetWarningsForCIDR`).
pub(crate) fn cidr_warning(field: impl fmt::Display, text: &str) -> Vec<String> {
    let Some(range) = Cidr::parse(text).filter(|_| text == text.trim()) else { return Vec::new() };
    let address = text.split('/').next().and_then(parse_ip).unwrap_or_else(|| range.base());
    let mut told = Vec::new();
    if address != range.base() {
        let one = Cidr::host(address).to_string();
        let range = range.to_string();
        told.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be {range:?} or {one:?}?)"
        ));
    }
    let is_mapped = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let strict = parse_cidr(text).filter(|(address, _)| !is_mapped(address));
    if strict.is_none() {
        told.push(format!("{field}: non-standard CIDR value {text:?} is invalid: use {:?}", range.to_string()));
    }
    let canonical = strict.map(|(address, length)| format!("{address}/{length}"));
    if told.is_empty() && address.is_ipv6() && canonical.as_deref().is_some_and(|canonical| canonical != text) {
        let canonical = canonical.unwrap_or_default();
        told.push(format!("{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({canonical:?})"));
    }
    told
}

/// Whether a finalizer is one of upstream's own, which need no domain.
pub(crate) fn is_standard_finalizer(name: &str) -> bool {
    matches!(name, "kubernetes" | "orphan" | "foregroundDeletion")
}

/// A finalizer of a built-in type.
pub(crate) fn kube_finalizer(name: &str) -> Option<String> {
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    (!is_standard_finalizer(name) && !name.contains('/')).then(|| why.to_owned())
}

/// A port from 1 to 65535.
pub(crate) fn is_port(value: &Value) -> bool {
    matches!(value.as_i64(), Some(1..=65535))
}

/// A port by number or by name.
pub(crate) fn port_or_name(field: impl Into<String>, value: &Value, errors: &mut Errors) {
    match value {
        Value::String(name) => errors.unless(field, name, port_name(name)),
        Value::Null => errors.required(field, ""),
        number if !is_port(number) => {
            errors.invalid(field, number, crate::apiserver::pipeline::validation::errors::PORT)
        }
        _ => {}
    }
}

/// A map of labels.
pub(crate) fn labels(map: &Value, field: impl Into<String> + Copy, errors: &mut Errors) {
    for (key, value) in map.as_object().into_iter().flatten() {
        qualified_problems(key).iter().for_each(|why| errors.invalid_text(field, key, why));
        let value = value.as_str().unwrap_or_default();
        errors.unless(field, value, label_value(value));
    }
}

/// Upstream's limit on all annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// A map of annotations.
pub(crate) fn annotations(map: &Value, field: impl Into<String> + Copy, errors: &mut Errors) {
    let mut total = 0;
    for (key, value) in map.as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        qualified_problems(&key.to_lowercase()).iter().for_each(|why| errors.invalid_text(field, key, why));
    }
    if total > MAX_ANNOTATIONS_BYTES {
        errors.too_long(field, MAX_ANNOTATIONS_BYTES);
    }
}

const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// A DNS name whose first label is `*`.
pub(crate) fn wildcard_subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some(no_more_than(253));
    }
    let good = text.strip_prefix("*.").is_some_and(|rest| subdomain(rest).is_none());
    (!good).then(|| WILDCARD.to_owned())
}

/// The number of a port, as a check of a field that holds one.
pub(crate) fn port_number(number: i64) -> Option<String> {
    (!(1..=65535).contains(&number)).then(|| crate::apiserver::pipeline::validation::errors::PORT.to_owned())
}

const DOMAIN_PATH: &str = "must be a domain-prefixed path (such as \"acme.io/foo\")";

/// A path with a domain before it, as names of controllers: the part that is wrong, and why.
pub(crate) fn domain_prefixed_path(text: &str) -> Option<(&str, String)> {
    let parts = text.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty());
    let Some((domain, path)) = parts else {
        return Some((text, DOMAIN_PATH.to_owned()));
    };
    if let Some(why) = subdomain(domain) {
        return Some((domain, why));
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"/\\-._~%!$&'()*+,;=:".contains(&b);
    let why = || format!("Invalid path (regex used for validation is '{HTTP_PATH}')");
    (!path.bytes().all(fine)).then(|| (path, why()))
}

const HTTP_PATH: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";

/// The masked address of a CIDR and its length.
pub(crate) fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').filter(|(_, bits)| bits.bytes().all(|bit| bit.is_ascii_digit()))?;
    let (address, length): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most && (bits.len() == 1 || !bits.starts_with('0'))).then_some((address, length))
}

/// The first address of the range.
pub(crate) fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

const LEADING_ZEROS: &str = "must not have leading 0s in IP or prefix length";

/// A range of addresses in its canonical form.
pub(crate) fn cidr(text: &str) -> Option<String> {
    let Some((address, length)) = parse_cidr(text) else {
        let zeros = text == text.trim() && Cidr::parse(text).is_some();
        let why = if zeros { LEADING_ZEROS } else { "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)" };
        return Some(why.to_owned());
    };
    if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        return Some("must not have an IPv4-mapped IPv6 address".to_owned());
    }
    (masked(address, length) != address).then(|| "must not have bits set beyond the prefix length".to_owned())
}
