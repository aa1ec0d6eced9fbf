//! What drivers, pools, devices and their attributes may be called. Pure.

use std::net::IpAddr;

use windlass_apimachinery::go_quoted;
use windlass_kit::net::parse_ip;

use super::lists;
use crate::{
    apiserver::pipeline::validation::{
        errors::Errors,
        names::{label, qualified_problems, subdomain},
    },
    kinds::shared::{field::Field, field_path::FieldPath},
};

const MAX_DRIVER_BYTES: usize = 63;
const MAX_POOL_BYTES: usize = 253;
const MAX_ID_BYTES: usize = 32;
const MAX_CONDITIONS: usize = 4;
const C_IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
const NORMALIZED: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
const FULLY_QUALIFIED: &str = "a fully qualified name must be a domain and a name separated by a slash";
/// The length of a UUID with its hyphens.
const UUID_LEN: usize = 36;

/// The longest key of an attribute or capacity: domain, slash and name.
pub(super) const MAX_KEY_BYTES: usize = MAX_DRIVER_BYTES + 1 + MAX_ID_BYTES;
/// The longest name of a counter.
pub(super) const MAX_COUNTER_BYTES: usize = 63;

/// Validates the name of a driver.
pub(super) fn driver(name: &Field<'_>, errors: &mut Errors) {
    domain(&name.path, name.text(), errors);
}

fn domain(path: &FieldPath, text: &str, errors: &mut Errors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    if text.len() > MAX_DRIVER_BYTES {
        errors.too_long(path, MAX_DRIVER_BYTES);
    }
    // Upper case is only warned of.
    errors.unless(path, text, subdomain(&text.to_lowercase()));
}

/// Validates the name of a pool, which may have several parts.
pub(super) fn pool(name: &Field<'_>, errors: &mut Errors) {
    if name.text().is_empty() {
        return name.required("", errors);
    }
    name.max_bytes(MAX_POOL_BYTES, errors);
    for part in name.text().split('/') {
        errors.unless(&name.path, part, subdomain(part));
    }
}

/// Validates the name of a counter, which is the key of a map or stands in a field.
pub(super) fn counter(path: &FieldPath, text: &str, errors: &mut Errors) {
    errors.unless(path, text, label(text));
}

/// Validates the name of a set of counters.
pub(super) fn counter_set(name: &Field<'_>, errors: &mut Errors) {
    name.named(label, errors);
}

/// Validates the name of an attribute or a capacity, which may have a domain. More than one slash is taken, as upstream does.
pub(super) fn qualified(path: &FieldPath, text: &str, errors: &mut Errors) {
    match text.split('/').collect::<Vec<_>>()[..] {
        [id] => c_identifier(path, id, errors),
        [domain_part, id] => {
            if domain_part.is_empty() {
                errors.invalid_text(path, "", "the domain must not be empty");
            } else {
                domain(path, domain_part, errors);
            }
            if id.is_empty() {
                errors.invalid_text(path, "", "the name must not be empty");
            } else {
                c_identifier(path, id, errors);
            }
        }
        _ => {}
    }
}

/// Validates the name of an attribute, which has a domain.
pub(super) fn fully_qualified(name: &Field<'_>, errors: &mut Errors) {
    qualified(&name.path, name.text(), errors);
    if !name.text().contains('/') {
        name.invalid(FULLY_QUALIFIED, errors);
    }
}

fn c_identifier(path: &FieldPath, text: &str, errors: &mut Errors) {
    if text.len() > MAX_ID_BYTES {
        errors.too_long(path, MAX_ID_BYTES);
    }
    let fine = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !fine {
        errors.invalid_text(path, text, C_IDENTIFIER);
    }
}

/// Validates the ID of a share of a device.
pub(super) fn uid(uid: &Field<'_>, errors: &mut Errors) {
    let text = uid.text();
    if let Some(why) = uuid_problem(text.as_bytes()) {
        uid.invalid(&format!("error validating uid: {why}"), errors);
    } else if text.len() != UUID_LEN || text != text.to_lowercase() {
        uid.invalid(NORMALIZED, errors);
    }
}

/// What is wrong with a UUID in any of its forms, in the words of the library that upstream uses.
fn uuid_problem(text: &[u8]) -> Option<String> {
    const FORMAT: &str = "invalid UUID format";
    const PREFIX: &[u8] = b"urn:uuid:";
    let hyphened = match text.len() {
        UUID_LEN => text,
        45 => match text.split_at(PREFIX.len()) {
            (prefix, rest) if prefix.eq_ignore_ascii_case(PREFIX) => rest,
            (prefix, _) => {
                return Some(format!("invalid urn prefix: {}", go_quoted(&String::from_utf8_lossy(prefix))));
            }
        },
        38 => match text {
            [b'{', inside @ .., b'}'] => inside,
            _ => return Some("invalid bracketed UUID format".to_owned()),
        },
        32 => return text.iter().any(|b| !b.is_ascii_hexdigit()).then(|| FORMAT.to_owned()),
        other => return Some(format!("invalid UUID length: {other}")),
    };
    let fits = |(at, byte): (usize, &u8)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    (!hyphened.iter().enumerate().all(fits)).then(|| FORMAT.to_owned())
}

/// What is wrong with the address of an interface, with the length of its network.
pub(super) fn interface_address(text: &str) -> Option<String> {
    const CIDR: &str = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
    let bits = if text.contains(':') { 128 } else { 32 };
    let read = text.split_once('/').and_then(|(address, length)| {
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        let length = length.parse::<i32>().ok().filter(|length| digits && *length <= bits)?;
        Some((parse_ip(address)?, length))
    });
    let Some((address, length)) = read else { return Some(CIDR.to_owned()) };
    // The network of an IPv4 address that is written as an IPv6 one.
    let length = if matches!(address, IpAddr::V4(_)) && length > 32 { length - 96 } else { length };
    let canonical = format!("{address}/{length}");
    (canonical != text).then(|| format!("must be in canonical form ({canonical:?})"))
}

/// Validates the conditions that say whether a device is ready for a pod, or never will be.
pub(super) fn binding_conditions(device: &Field<'_>, errors: &mut Errors) {
    let (good, bad) = (device.at("bindingConditions"), device.at("bindingFailureConditions"));
    let is_label = |name: &Field<'_>, errors: &mut Errors| {
        qualified_problems(name.text()).iter().for_each(|why| name.invalid(why, errors));
    };
    lists::slice(&good, MAX_CONDITIONS, errors, is_label);
    lists::slice(&bad, MAX_CONDITIONS, errors, is_label);
    let wanted = good.texts();
    for (list, is_bad) in [(&good, false), (&bad, true)] {
        let all = list.texts();
        for (at, item) in list.items().enumerate() {
            if all[..at].contains(&item.text()) {
                item.duplicate(errors);
            }
            if is_bad && wanted.contains(&item.text()) {
                item.invalid("bindingFailureConditions must not overlap with bindingConditions", errors);
            }
        }
    }
    for (list, other, names) in [
        (&good, &bad, "bindingConditions are required to use bindingFailureConditions"),
        (&bad, &good, "bindingFailureConditions are required to use bindingConditions"),
    ] {
        if list.is_empty() && !other.is_empty() {
            list.invalid(names, errors);
        }
    }
}
