//! Texts as parts of URLs (RFC 3986, section 2.1).

use std::fmt::Write as _;

/// `text` with every byte escaped that is neither unreserved nor one of `kept`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_escaped_unless_it_is_kept() {
        assert_eq!(encoded("a-1._~", ""), "a-1._~");
        assert_eq!(encoded("a/b c:é", ""), "a%2Fb%20c%3A%C3%A9");
        assert_eq!(encoded("a/b:c", "/"), "a/b%3Ac");
    }
}
