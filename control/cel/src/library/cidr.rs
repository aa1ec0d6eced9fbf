//! Addresses with the length of a prefix: upstream's `library/cidr.go`, and Go's `netip.Prefix`.

use std::{fmt, net::IpAddr};

use windlass_apimachinery::go_quoted;

use super::{Row, global, ip, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Opaque, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("cidr", "string_to_cidr", "string -> cidr", Cost::Parse, cidr),
    member("containsIP", "cidr_contains_ip_string", "cidr, string -> bool", Cost::ContainsIpText, contains_ip),
    member("containsIP", "cidr_contains_ip_ip", "cidr, ip -> bool", Cost::ContainsIp, contains_ip),
    member("containsCIDR", "cidr_contains_cidr_string", "cidr, string -> bool", Cost::ContainsCidrText, contains_cidr),
    member("containsCIDR", "cidr_contains_cidr", "cidr, cidr -> bool", Cost::ContainsCidr, contains_cidr),
    member("ip", "cidr_ip", "cidr -> ip", Cost::CidrIp, |args| of(args, |cidr| Value::Opaque(Opaque::Ip(cidr.address)))),
    member("prefixLength", "cidr_prefix_length", "cidr -> int", Cost::Accessor, |args| of(args, |cidr| Value::Int(i64::from(cidr.bits)))),
    member("masked", "cidr_masked", "cidr -> cidr", Cost::Accessor, |args| of(args, |cidr| Value::Opaque(Opaque::Cidr(cidr.masked())))),
    global("isCIDR", "is_cidr", "string -> bool", Cost::Parse, is_cidr),
    global("string", "cidr_to_string", "cidr -> string", Cost::One, |args| of(args, |cidr| Value::text(cidr.to_string()))),
];

/// An address and how many bits of it are the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Go's `netip.ParsePrefix`.
    fn parse(text: &str) -> Result<Self, String> {
        let failed = |why: &str| format!("netip.ParsePrefix({}): {why}", go_quoted(text));
        let (address, bits) = text.rsplit_once('/').ok_or_else(|| failed("no '/'"))?;
        let (address, has_zone) = ip::parse_address(address).map_err(|why| failed(&why))?;
        if has_zone {
            return Err(failed("IPv6 zones cannot be present in a prefix"));
        }
        let bad = || failed(&format!("bad bits after slash: {}", go_quoted(bits)));
        if bits.len() > 1 && !bits.starts_with(|c: char| ('1'..='9').contains(&c)) {
            return Err(bad());
        }
        let number: i64 = bits.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = u8::try_from(number).ok().filter(|bits| *bits <= most);
        Ok(Self { address, bits: bits.ok_or_else(|| failed("prefix length out of range"))? })
    }

    /// How many bits are the prefix.
    pub(crate) const fn bits(self) -> u8 {
        self.bits
    }

    fn masked(self) -> Self {
        let bits = u32::from(self.bits);
        let address = match self.address {
            IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0)).into()),
            IpAddr::V6(ip) => {
                IpAddr::V6((u128::from(ip) & u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0)).into())
            }
        };
        Self { address, ..self }
    }

    fn contains(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4() && Self { address: ip, ..self }.masked() == self.masked()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn parse(text: &str) -> Result<Cidr, EvalError> {
    const CONTEXT: &str = "network address parse error during conversion from string";
    let parsed = Cidr::parse(text).map_err(|why| format!("{CONTEXT}: {why}")).and_then(|cidr| {
        if ip::is_mapped(cidr.address) {
            return Err(format!("IPv4-mapped IPv6 address {} is not allowed", go_quoted(text)));
        }
        Ok(cidr)
    });
    parsed.map_err(|why| EvalError::new(format!("{CONTEXT}: {why}")))
}

fn of<'a>(args: &[Value<'a>], part: fn(Cidr) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Cidr(cidr))] => Ok(part(*cidr)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn cidr<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    parse(text).map(|cidr| Value::Opaque(Opaque::Cidr(cidr)))
}

fn is_cidr<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    Ok(Value::Bool(parse(text).is_ok()))
}

fn contains_ip<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (cidr, ip) = match args {
        [Value::Opaque(Opaque::Cidr(cidr)), Value::Opaque(Opaque::Ip(ip))] => (cidr, *ip),
        // As upstream: what is wrong with the text is lost.
        [Value::Opaque(Opaque::Cidr(cidr)), Value::String(text)] => {
            (cidr, ip::parse(text).map_err(|_| EvalError::no_such_overload())?)
        }
        _ => return Err(EvalError::no_such_overload()),
    };
    Ok(Value::Bool(cidr.contains(ip)))
}

fn contains_cidr<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (cidr, other) = match args {
        [Value::Opaque(Opaque::Cidr(cidr)), Value::Opaque(Opaque::Cidr(other))] => (cidr, *other),
        [Value::Opaque(Opaque::Cidr(cidr)), Value::String(text)] => (cidr, parse(text)?),
        _ => return Err(EvalError::no_such_overload()),
    };
    Ok(Value::Bool(cidr.bits <= other.bits && cidr.contains(other.address)))
}
