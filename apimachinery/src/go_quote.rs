//! Quotes text as Go does (`%q`): in errors of fields, and in files of the downward API. Pure.

use std::fmt::Write as _;

/// A text as Go's `%q` writes it: `strconv.Quote`.
#[must_use]
pub fn go_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if is_print(c) => out.push(c),
            c => {
                // Writing to a string does not fail.
                let _ = match u32::from(c) {
                    code @ (0..0x20 | 0x7f) => write!(out, "\\x{code:02x}"),
                    code @ 0..0x1_0000 => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// Go's `strconv.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space.
fn is_print(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // The standard library has the same classes for its own escapes, of characters after the first: it would escape a
    // leading mark.
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        for (text, quoted) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            ("say \"it\"", r#""say \"it\"""#),
            ("it's", r#""it's""#),
            ("back\\slash", r#""back\\slash""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1}\u{1b}\u{7f}", r#""\x00\x01\x1b\x7f""#),
            ("\u{80}\u{85}", r#""\u0080\u0085""#),
            ("no\u{a0}break", r#""no\u00a0break""#),
            ("soft\u{ad}hyphen", r#""soft\u00adhyphen""#),
            ("zero\u{200b}width\u{200d}", r#""zero\u200bwidth\u200d""#),
            ("lines\u{2028}\u{2029}", r#""lines\u2028\u2029""#),
            ("\u{feff}mark", r#""\ufeffmark""#),
            ("\u{3000}", r#""\u3000""#),
            ("\u{e000}\u{f8ff}", r#""\ue000\uf8ff""#),
            ("\u{fffd}", "\"\u{fffd}\""),
            ("\u{10ffff}", r#""\U0010ffff""#),
            ("\u{e0001}", r#""\U000e0001""#),
            ("ä ß é", "\"ä ß é\""),
            // Combining marks are not escaped.
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            ("สวัสดี", "\"สวัสดี\""),
            ("हिन्दी", "\"हिन्दी\""),
            ("日本語", "\"日本語\""),
            ("\u{1f600}", "\"\u{1f600}\""),
        ] {
            assert_eq!(go_quoted(text), quoted, "{text:?}");
        }
    }
}
