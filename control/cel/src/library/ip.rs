//! Addresses: upstream's `library/ip.go`, and Go's `netip.ParseAddr` with its words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_apimachinery::go_quoted;

use super::{Row, global, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Opaque, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("ip", "string_to_ip", "string -> ip", Cost::Parse, ip),
    member("family", "ip_family", "ip -> int", Cost::Accessor, |args| of(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 }))),
    global("ip.isCanonical", "ip_is_canonical", "string -> bool", Cost::ParseTwice, is_canonical),
    member("isUnspecified", "ip_is_unspecified", "ip -> bool", Cost::Accessor, |args| of(args, |ip| Value::Bool(ip.is_unspecified()))),
    member("isLoopback", "ip_is_loopback", "ip -> bool", Cost::Accessor, |args| of(args, |ip| Value::Bool(ip.is_loopback()))),
    member("isLinkLocalMulticast", "ip_is_link_local_multicast", "ip -> bool", Cost::Accessor, |args| of(args, |ip| Value::Bool(is_link_local_multicast(ip)))),
    member("isLinkLocalUnicast", "ip_is_link_local_unicast", "ip -> bool", Cost::Accessor, |args| of(args, |ip| Value::Bool(is_link_local_unicast(ip)))),
    member("isGlobalUnicast", "ip_is_global_unicast", "ip -> bool", Cost::Accessor, |args| of(args, |ip| Value::Bool(is_global_unicast(ip)))),
    global("isIP", "is_ip", "string -> bool", Cost::Parse, is_ip),
    global("string", "ip_to_string", "ip -> string", Cost::One, |args| of(args, |ip| Value::text(ip.to_string()))),
];

fn of<'a>(args: &[Value<'a>], part: fn(IpAddr) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Ip(ip))] => Ok(part(*ip)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn ip<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    parse(text).map(|ip| Value::Opaque(Opaque::Ip(ip))).map_err(EvalError::new)
}

fn is_ip<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    Ok(Value::Bool(parse(text).is_ok()))
}

fn is_canonical<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    let ip = parse(text).map_err(EvalError::new)?;
    Ok(Value::Bool(ip.to_string() == **text))
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Go counts private addresses to them, and others that are routed nowhere.
fn is_global_unicast(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(is_broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local_unicast(ip))
}

/// An address without a zone, and not an IPv4 address in an IPv6 one.
///
/// # Errors
/// upstream's words.
pub(super) fn parse(text: &str) -> Result<IpAddr, String> {
    let quoted = || go_quoted(text);
    match parse_address(text) {
        Err(why) => Err(format!("IP Address {} parse error during conversion from string: {why}", quoted())),
        Ok((_, true)) => Err(format!("IP address {} with zone value is not allowed", quoted())),
        Ok((ip, _)) if is_mapped(ip) => Err(format!("IPv4-mapped IPv6 address {} is not allowed", quoted())),
        Ok((ip, _)) => Ok(ip),
    }
}

/// Whether it is an IPv4 address in an IPv6 one.
pub(super) fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

/// Go's `netip.ParseAddr`: an address, and whether it has a zone.
///
/// # Errors
/// Go's words.
pub(super) fn parse_address(text: &str) -> Result<(IpAddr, bool), String> {
    let failed = |message: &str, at: Option<&str>| {
        let at = at.filter(|at| !at.is_empty()).map(|at| format!(" (at {})", go_quoted(at))).unwrap_or_default();
        format!("ParseAddr({}): {message}{at}", go_quoted(text))
    };
    match text.find(['.', ':', '%']).map(|at| &text[at..=at]) {
        Some(".") => parse_ipv4(text).map(|ip| (IpAddr::V4(ip), false)).map_err(|(why, at)| failed(why, at)),
        Some(":") => {
            let (address, zone) = text.split_once('%').map_or((text, None), |(ip, zone)| (ip, Some(zone)));
            if zone == Some("") {
                return Err(failed("zone must be a non-empty string", None));
            }
            let parsed = parse_ipv6(address).map_err(|(why, at)| failed(why, at))?;
            Ok((IpAddr::V6(parsed), zone.is_some()))
        }
        Some(_) => Err(failed("missing IPv6 address", None)),
        None => Err(failed("unable to parse IP", None)),
    }
}

/// What is wrong, and the text from where it is.
type Wrong<'a> = (&'static str, Option<&'a str>);

fn parse_ipv4(text: &str) -> Result<Ipv4Addr, Wrong<'_>> {
    let mut fields = [0u8; 4];
    let (mut field, mut value, mut digits) = (0, 0u32, 0);
    let mut before = '.';
    for (at, c) in text.char_indices() {
        match c {
            '0'..='9' => {
                if digits == 1 && value == 0 {
                    return Err(("IPv4 field has octet with leading zero", None));
                }
                value = value * 10 + c.to_digit(10).unwrap_or(0);
                digits += 1;
                if value > 255 {
                    return Err(("IPv4 field has value >255", None));
                }
            }
            '.' => {
                if before == '.' || at + 1 == text.len() {
                    return Err(("IPv4 field must have at least one digit", Some(&text[at..])));
                }
                if field == 3 {
                    return Err(("IPv4 address too long", None));
                }
                fields[field] = u8::try_from(value).unwrap_or(0);
                (field, value, digits) = (field + 1, 0, 0);
            }
            _ => return Err(("unexpected character", Some(&text[at..]))),
        }
        before = c;
    }
    if field < 3 {
        return Err(("IPv4 address too short", None));
    }
    fields[3] = u8::try_from(value).unwrap_or(0);
    Ok(Ipv4Addr::from(fields))
}

fn parse_ipv6(text: &str) -> Result<Ipv6Addr, Wrong<'_>> {
    let mut groups: Vec<u16> = Vec::with_capacity(8);
    let mut ellipsis = None;
    let mut rest = text;
    if let Some(after) = rest.strip_prefix("::") {
        ellipsis = Some(0);
        rest = after;
        if rest.is_empty() {
            return Ok(Ipv6Addr::UNSPECIFIED);
        }
    }
    while groups.len() < 8 {
        let length = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        if length > 4 {
            return Err(("each group must have 4 or less digits", Some(rest)));
        }
        let Ok(group) = u16::from_str_radix(&rest[..length], 16) else {
            return Err(("each colon-separated field must have at least one digit", Some(rest)));
        };
        if rest[length..].starts_with('.') {
            if ellipsis.is_none() && groups.len() != 6 {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return Err((why, Some(rest)));
            }
            if groups.len() + 2 > 8 {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err((why, Some(rest)));
            }
            let [a, b, c, d] = parse_ipv4(rest)?.octets();
            groups.extend([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
            rest = "";
            break;
        }
        groups.push(group);
        rest = &rest[length..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else { return Err(("unexpected character, want colon", Some(rest))) };
        if after.is_empty() {
            return Err(("colon must be followed by more characters", Some(rest)));
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if ellipsis.is_some() {
                return Err(("multiple :: in address", Some(rest)));
            }
            ellipsis = Some(groups.len());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
    if !rest.is_empty() {
        return Err(("trailing garbage after address", Some(rest)));
    }
    match ellipsis {
        None if groups.len() < 8 => return Err(("address string too short", None)),
        Some(_) if groups.len() == 8 => return Err(("the :: must expand to at least one field of zeros", None)),
        Some(at) => {
            let missing = 8 - groups.len();
            groups.splice(at..at, std::iter::repeat_n(0, missing));
        }
        None => {}
    }
    let groups: [u16; 8] = groups.try_into().unwrap_or_default();
    Ok(Ipv6Addr::from(groups))
}
