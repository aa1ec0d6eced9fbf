//! Names of properties as expressions write them; upstream's `apiserver/pkg/cel/escaping.go`.

use std::borrow::Cow;

use crate::parser::RESERVED;

/// What stands for characters that no identifier has.
const ESCAPES: [(&str, &str); 4] = [("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")];

/// A property's name as an identifier: `a-b` is `a__dash__b`, `namespace` is `__namespace__`. Nothing if it has other
/// characters, or begins with a digit.
#[must_use]
pub fn escape(name: &str) -> Option<Cow<'_, str>> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(Cow::Owned(format!("__{name}__")));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'/')) {
        return None;
    }
    let mut out = String::new();
    let mut rest = name;
    while let Some((at, text, escaped)) = ESCAPES
        .iter()
        .filter_map(|(text, escaped)| rest.find(text).map(|at| (at, *text, *escaped)))
        .min_by_key(|(at, ..)| *at)
    {
        out.push_str(&rest[..at]);
        out.push_str("__");
        out.push_str(escaped);
        out.push_str("__");
        rest = &rest[at + text.len()..];
    }
    if out.is_empty() && rest.len() == name.len() {
        return Some(Cow::Borrowed(name));
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// The property's name that an identifier stands for; nothing if it holds an escape that stands for nothing.
#[must_use]
pub fn unescape(identifier: &str) -> Option<Cow<'_, str>> {
    if !identifier.contains("__") {
        return Some(Cow::Borrowed(identifier));
    }
    let mut out = String::new();
    let mut rest = identifier;
    while let Some((before, word, after)) = next_escape(rest) {
        out.push_str(before);
        if let Some((text, _)) = ESCAPES.iter().find(|(_, escaped)| *escaped == word) {
            out.push_str(text);
        } else if RESERVED.contains(&word) && word.len() + 4 == identifier.len() {
            out.push_str(word);
        } else {
            return None;
        }
        rest = after;
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// The first `__word__` whose word has no underscore, with what is before and after it.
fn next_escape(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    while let Some(open) = text[from..].find("__").map(|at| at + from) {
        let inside = &text[open + 2..];
        let end = inside.find('_').unwrap_or(inside.len());
        if end > 0 && inside[end..].starts_with("__") {
            return Some((&text[..open], &inside[..end], &inside[end + 2..]));
        }
        from = open + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_back() {
        for (name, escaped) in [
            ("a", "a"),
            ("a_b", "a_b"),
            ("a__b", "a__underscores__b"),
            ("a.b", "a__dot__b"),
            ("a-b/c", "a__dash__b__slash__c"),
            ("namespace", "__namespace__"),
            ("if", "__if__"),
            ("_", "_"),
            ("___", "__underscores___"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(escaped), "{name}");
            assert_eq!(unescape(escaped).as_deref(), Some(name), "{escaped}");
        }
        for name in ["", "1a", "a b", "ä", "a$"] {
            assert_eq!(escape(name), None, "{name}");
        }
        for identifier in ["a__x__b", "__unknown__", "a__if__"] {
            assert_eq!(unescape(identifier), None, "{identifier}");
        }
    }
}
