//! Literals of texts and bytes to what they stand for; cel-go's `parser/unescape.go`.

/// The bytes of a literal with its quotes and prefix `r`, if it has one. In a text escapes stand for characters, in bytes
/// for bytes.
///
/// # Errors
/// cel-go's words for an escape that stands for nothing.
pub(super) fn unescape(literal: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    let literal = literal.replace("\r\n", "\n").replace('\r', "\n");
    let raw = literal.strip_prefix(['r', 'R']);
    let quoted = raw.unwrap_or(&literal);
    let quotes = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\"")) { 3 } else { 1 };
    let text = quoted.get(quotes..quoted.len().saturating_sub(quotes)).ok_or("unable to unescape string")?;
    if raw.is_some() || !text.contains('\\') {
        return Ok(text.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escaped)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        rest = escape(escaped, is_bytes, &mut out)?;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Writes what one escape stands for, and gives what follows it.
fn escape<'a>(escaped: &'a str, is_bytes: bool, out: &mut Vec<u8>) -> Result<&'a str, &'static str> {
    const INVALID: &str = "unable to unescape string";
    let mut chars = escaped.chars();
    let kind = chars.next().ok_or("unable to unescape string, found '\\' as last character")?;
    let plain = match kind {
        'a' => 0x7,
        'b' => 0x8,
        'f' => 0xc,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0xb,
        '\\' | '\'' | '"' | '`' | '?' => u8::try_from(kind).map_err(|_| INVALID)?,
        _ => 0,
    };
    if plain != 0 {
        out.push(plain);
        return Ok(chars.as_str());
    }
    let (digits, radix) = match kind {
        'x' | 'X' => (1..3, 16),
        'u' if !is_bytes => (1..5, 16),
        'U' if !is_bytes => (1..9, 16),
        '0'..='3' => (0..3, 8),
        _ => return Err(INVALID),
    };
    let end = digits.end;
    let number = escaped.get(digits).and_then(|digits| u32::from_str_radix(digits, radix).ok()).ok_or(INVALID)?;
    if is_bytes {
        out.push(u8::try_from(number).map_err(|_| INVALID)?);
    } else {
        let c = char::from_u32(number).ok_or("invalid unicode code point")?;
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(&escaped[end..])
}
