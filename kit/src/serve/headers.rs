//! Texts of headers. Bytes above 0x7f are allowed in them and are UTF-8 where clients know names of people, which
//! [`HeaderValue::to_str`] refuses: what decides something is read here, so that nothing of it falls away. Pure.
//!
//! [`HeaderValue::to_str`]: axum::http::HeaderValue::to_str

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue};

/// A header that is no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the header {0} is not UTF-8: send it as UTF-8, or leave it away")]
pub struct NotText(String);

fn read<'a>(name: &str, value: &'a HeaderValue) -> Result<&'a str, NotText> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| NotText(name.to_owned()))
}

/// The first value of a header that decides something.
///
/// # Errors
/// When it is no text: the request must be refused.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, NotText> {
    headers.get(name).map(|value| read(name, value)).transpose()
}

/// All values of a header that decides something.
///
/// # Errors
/// When one of them is no text: the request must be refused.
pub fn texts<'a>(headers: &'a HeaderMap, name: &str) -> Result<Vec<&'a str>, NotText> {
    headers.get_all(name).iter().map(|value| read(name, value)).collect()
}

/// The first value of a header for records and choices that grant nothing; empty without one. What is no text is replaced,
/// so that it is equal to nothing that is known.
#[must_use]
pub fn shown<'a>(headers: &'a HeaderMap, name: &str) -> Cow<'a, str> {
    headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
}

/// The items of a header that may be repeated and separated by commas, as [`shown`] reads them.
pub fn items(headers: &HeaderMap, name: &str) -> impl Iterator<Item = String> {
    let all: Vec<_> = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let items = |text: Cow<'_, str>| text.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>();
    all.into_iter().flat_map(items).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x", HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn what_is_there_is_text_or_refused() {
        for (values, first, all, listed) in [
            (&[][..], Ok(None), Some(vec![]), vec![]),
            (&[&b"a, b"[..], b"c,,"], Ok(Some("a, b")), Some(vec!["a, b", "c,,"]), vec!["a", "b", "c"]),
            (&["jürgen".as_bytes()], Ok(Some("jürgen")), Some(vec!["jürgen"]), vec!["jürgen"]),
            (&[b"a", b"j\xfcrgen"], Ok(Some("a")), None, vec!["a", "j\u{fffd}rgen"]),
            (&[b"\xff", b"a"], Err(()), None, vec!["\u{fffd}", "a"]),
        ] {
            let headers = headers(values);
            assert_eq!(text(&headers, "x").map_err(|_| ()), first, "{values:?}");
            assert_eq!(texts(&headers, "x").ok(), all, "{values:?}");
            assert_eq!(items(&headers, "x").collect::<Vec<_>>(), listed, "{values:?}");
        }
        // Every byte that a header may have.
        for byte in 0x80..=0xff_u8 {
            let headers = headers(&[&[b'a', byte]]);
            assert!(text(&headers, "x").is_err(), "{byte:x}");
            assert_eq!(shown(&headers, "x"), "a\u{fffd}", "{byte:x}");
        }
    }
}
