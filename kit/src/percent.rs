//! Percent-encoding (RFC 3986, section 2.1).

use std::fmt::Write as _;

/// Encodes every byte that is neither unreserved nor one of `kept`.
#[must_use]
pub fn encoded(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Decodes a text; `None` when an escape is malformed, or the result is not UTF-8.
#[must_use]
pub fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_escaped_unless_it_is_kept() {
        assert_eq!(encoded("a-1._~", ""), "a-1._~");
        assert_eq!(encoded("a/b c:é", ""), "a%2Fb%20c%3A%C3%A9");
        assert_eq!(encoded("a/b:c", "/"), "a/b%3Ac");
    }
    #[test]
    fn escapes_are_read() {
        assert_eq!(decoded("system%3Anode%3a%C3%A9+/").as_deref(), Some("system:node:é+/"));
        for broken in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
    }
}
