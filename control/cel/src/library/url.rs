//! URLs as Go reads them: `net/url`, and upstream's `library/urls.go`. Unlike other readers, Go's changes nothing.

use std::{fmt, sync::Arc};

use windlass_apimachinery::go_quoted;

use super::{Row, global, ip, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Key, Map, Opaque, Outcome, OwnedMap, Text, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("url", "string_to_url", "string -> url", Cost::Traverse, url),
    member("getScheme", "url_get_scheme", "url -> string", Cost::Accessor, |args| of(args, |url| url.scheme.clone())),
    member("getHost", "url_get_host", "url -> string", Cost::Accessor, |args| of(args, |url| lossy(&url.host))),
    member("getHostname", "url_get_hostname", "url -> string", Cost::Accessor, |args| of(args, |url| url.host_and_port().0)),
    member("getPort", "url_get_port", "url -> string", Cost::Accessor, |args| of(args, |url| url.host_and_port().1)),
    member("getEscapedPath", "url_get_escaped_path", "url -> string", Cost::Accessor, |args| of(args, Url::escaped_path)),
    member("getQuery", "url_get_query", "url -> map(string, list(string))", Cost::Accessor, query),
    global("isURL", "is_url_string", "string -> bool", Cost::One, is_url),
];

fn url<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    let parsed = check_request_uri(text).and_then(|()| Url::parse(text));
    parsed
        .map(|url| Value::Opaque(Opaque::Url(Arc::new(url))))
        .map_err(|why| EvalError::new(format!("URL parse error during conversion from string: {why}")))
}

fn is_url<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text)] = args else { return Err(EvalError::no_such_overload()) };
    Ok(Value::Bool(check_request_uri(text).is_ok()))
}

fn of<'a>(args: &[Value<'a>], part: fn(&Url) -> String) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Url(url))] => Ok(Value::text(part(url))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn query<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Url(url))] = args else { return Err(EvalError::no_such_overload()) };
    let mut values: Vec<(String, Vec<String>)> = Vec::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Ok(key), Ok(value)) = (unescape(key, Part::Query), unescape(value, Part::Query)) else { continue };
        let (key, value) = (lossy(&key), lossy(&value));
        match values.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.push(value),
            None => values.push((key, vec![value])),
        }
    }
    let entries: OwnedMap<'a> =
        values.into_iter().map(|(key, values)| (Key::String(Text::Shared(key.into())), Value::texts(values))).collect();
    Ok(Value::Map(Map::Owned(Arc::new(entries))))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A URL in parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// What follows the scheme, if that is no path.
    opaque: String,
    /// The name, and the password if there is one.
    user: Option<(Vec<u8>, Option<Vec<u8>>)>,
    host: Vec<u8>,
    path: Vec<u8>,
    /// The path as it was written, if it would be written in another way.
    raw_path: String,
    omits_host: bool,
    forces_query: bool,
    query: String,
    fragment: Vec<u8>,
    raw_fragment: String,
}

/// The part of a URL in which a character is escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    User,
    Host,
    Zone,
    Query,
    Fragment,
}

/// Whether Go's `url.ParseRequestURI` takes a text.
///
/// # Errors
/// Go's words for what is wrong with it.
pub(super) fn check_request_uri(text: &str) -> Result<(), String> {
    Url::read(text, true).map(|_| ()).map_err(|why| format!("parse {}: {why}", go_quoted(text)))
}

impl Url {
    /// Go's `url.Parse`.
    fn parse(text: &str) -> Result<Self, String> {
        let failed = |of: &str, why: String| format!("parse {}: {why}", go_quoted(of));
        let (before, fragment) = text.split_once('#').map_or((text, None), |(before, after)| (before, Some(after)));
        let mut url = Self::read(before, false).map_err(|why| failed(before, why))?;
        if let Some(fragment) = fragment.filter(|fragment| !fragment.is_empty()) {
            url.fragment = unescape(fragment, Part::Fragment).map_err(|why| failed(text, why))?;
            url.raw_fragment = fragment.to_owned();
        }
        Ok(url)
    }

    fn read(text: &str, is_request: bool) -> Result<Self, String> {
        if text.bytes().any(|b| b < b' ' || b == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() && is_request {
            return Err("empty url".to_owned());
        }
        let mut url = Self::default();
        if text == "*" {
            url.path = b"*".to_vec();
            return Ok(url);
        }
        let (scheme, mut rest) = scheme(text)?;
        url.scheme = scheme.to_ascii_lowercase();
        if rest.ends_with('?') && rest.matches('?').count() == 1 {
            url.forces_query = true;
            rest = &rest[..rest.len() - 1];
        } else if let Some((before, query)) = rest.split_once('?') {
            url.query = query.to_owned();
            rest = before;
        }
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                url.opaque = rest.to_owned();
                return Ok(url);
            }
            if is_request {
                return Err("invalid URI for request".to_owned());
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        }
        let may_have_authority = !url.scheme.is_empty() || !is_request && !rest.starts_with("///");
        if let Some(after) = rest.strip_prefix("//").filter(|_| may_have_authority) {
            let end = after.find('/').unwrap_or(after.len());
            url.read_authority(&after[..end])?;
            rest = &after[end..];
        } else if !url.scheme.is_empty() && rest.starts_with('/') {
            url.omits_host = true;
        }
        url.path = unescape(rest, Part::Path)?;
        if escape(&url.path, Part::Path) != rest {
            url.raw_path = rest.to_owned();
        }
        Ok(url)
    }

    fn read_authority(&mut self, authority: &str) -> Result<(), String> {
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        self.host = host_of(&self.scheme, host)?;
        let Some(user) = user else { return Ok(()) };
        let fine = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.chars().all(fine) {
            return Err("net/url: invalid userinfo".to_owned());
        }
        let (name, password) = user.split_once(':').map_or((user, None), |(name, word)| (name, Some(word)));
        let password = password.map(|password| unescape(password, Part::User)).transpose();
        self.user = Some((unescape(name, Part::User)?, password?));
        Ok(())
    }

    /// Go's `Hostname` and `Port`.
    fn host_and_port(&self) -> (String, String) {
        let host = lossy(&self.host);
        let (host, port) = match host.rfind(':') {
            Some(colon) if is_optional_port(&host[colon..]) => (&host[..colon], &host[colon + 1..]),
            _ => (host.as_str(), ""),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (bare.to_owned(), port.to_owned())
    }

    fn escaped_path(&self) -> String {
        let valid =
            |c: char| c == '%' || "!$&'()*+,;=:@[]".contains(c) || c.is_ascii() && !must_escape(c as u8, Part::Path);
        if !self.raw_path.is_empty()
            && self.raw_path.chars().all(valid)
            && unescape(&self.raw_path, Part::Path).is_ok_and(|path| path == self.path)
        {
            return self.raw_path.clone();
        }
        if self.path == b"*" { "*".to_owned() } else { escape(&self.path, Part::Path) }
    }

    /// The fragment as it was written, if nothing in it must be escaped; Go's `EscapedFragment`.
    fn escaped_fragment(&self) -> String {
        let valid = |byte: u8| b"!$&'()*+,;=:@[]%".contains(&byte) || !must_escape(byte, Part::Fragment);
        if self.raw_fragment.bytes().all(valid) {
            return self.raw_fragment.clone();
        }
        escape(&self.fragment, Part::Fragment)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        if !self.scheme.is_empty() {
            out.push_str(&self.scheme);
            out.push(':');
        }
        if !self.opaque.is_empty() {
            out.push_str(&self.opaque);
        } else {
            let has_authority = !self.host.is_empty() || self.user.is_some();
            if has_authority || !self.scheme.is_empty() && !self.omits_host && !self.path.is_empty() {
                out.push_str("//");
            }
            if let Some((name, password)) = &self.user {
                out.push_str(&escape(name, Part::User));
                if let Some(password) = password {
                    out.push(':');
                    out.push_str(&escape(password, Part::User));
                }
                out.push('@');
            }
            out.push_str(&escape(&self.host, Part::Host));
            let path = self.escaped_path();
            let mut path = path.as_str();
            if self.omits_host && !has_authority && path.starts_with("//") {
                out.push_str("%2F");
                path = &path[1..];
            }
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                out.push('/');
            }
            if out.is_empty() && path.split('/').next().is_some_and(|segment| segment.contains(':')) {
                out.push_str("./");
            }
            out.push_str(path);
        }
        if self.forces_query || !self.query.is_empty() {
            out.push('?');
            out.push_str(&self.query);
        }
        if !self.fragment.is_empty() {
            out.push('#');
            out.push_str(&self.escaped_fragment());
        }
        f.write_str(&out)
    }
}

/// What is before the first colon, if it is a scheme, and the rest.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn is_optional_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// Go's `parseHost`.
fn host_of(scheme: &str, host: &str) -> Result<Vec<u8>, String> {
    let invalid_port = |port: &str| Err(format!("invalid port {} after host", go_quoted(port)));
    match host.rfind('[') {
        Some(0) => {}
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {
            let is_web = matches!(scheme, "http" | "https");
            let colon = if is_web { host.find(':') } else { host.rfind(':') };
            if let Some(port) = colon.map(|colon| &host[colon..]).filter(|port| !is_optional_port(port)) {
                return invalid_port(port);
            }
            return unescape(host, Part::Host);
        }
    }
    let Some(close) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
    let port = &host[close + 1..];
    if !is_optional_port(port) {
        return invalid_port(port);
    }
    let name = &host[1..close];
    let zone = name.find("%25").unwrap_or(name.len());
    let mut address = unescape(&name[..zone], Part::Host)?;
    address.extend(unescape(&name[zone..], Part::Zone)?);
    match ip::parse_address(&lossy(&address)) {
        Err(why) => return Err(format!("invalid host: {why}")),
        Ok((address, _)) if address.is_ipv4() => return Err("invalid IP-literal".to_owned()),
        Ok(_) => {}
    }
    Ok([b"[", &address[..], b"]", port.as_bytes()].concat())
}

/// Go's `shouldEscape`.
fn must_escape(byte: u8, part: Part) -> bool {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => false,
        b'!' | b'(' | b')' | b'*' => !matches!(part, Part::Host | Part::Zone | Part::Fragment),
        b'\'' => !matches!(part, Part::Host | Part::Zone),
        b'[' | b']' | b'<' | b'>' | b'"' => !matches!(part, Part::Host | Part::Zone),
        b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' => match part {
            Part::Path => byte == b'?',
            Part::User => matches!(byte, b'@' | b'/' | b'?' | b':'),
            Part::Query => true,
            Part::Fragment => false,
            Part::Host | Part::Zone => matches!(byte, b'/' | b'?' | b'@'),
        },
        _ => true,
    }
}

fn escape(bytes: &[u8], part: Part) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if must_escape(*byte, part) {
            out.push_str(&format!("%{byte:02X}"));
        } else {
            out.push(char::from(*byte));
        }
    }
    out
}

fn unescape(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let invalid = |at: usize| {
        let shown = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 3)]).into_owned();
        Err(format!("invalid URL escape {}", go_quoted(&shown)))
    };
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let digits = bytes.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
                let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
                let Some(value) = value else { return invalid(at) };
                let is_percent = value == b'%';
                let fine = match part {
                    Part::Host => value >= 0x80 || is_percent,
                    Part::Zone => is_percent || value == b' ' || !must_escape(value, Part::Host),
                    _ => true,
                };
                if !fine {
                    return invalid(at);
                }
                out.push(value);
                at += 3;
                continue;
            }
            b'+' if part == Part::Query => out.push(b' '),
            byte if matches!(part, Part::Host | Part::Zone) && byte.is_ascii() && must_escape(*byte, part) => {
                return Err(format!("invalid character {} in host name", go_quoted(&char::from(*byte).to_string())));
            }
            byte => out.push(*byte),
        }
        at += 1;
    }
    Ok(out)
}
