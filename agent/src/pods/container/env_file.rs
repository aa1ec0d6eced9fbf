//! Environment files: lines `KEY=value`, or `KEY='value'` where the value is literal and may have several lines. Empty
//! lines and comments, which begin with `#`, are skipped. Pure.

/// The value of a key; the last one where there are several.
///
/// # Errors
/// The first invalid line, unless the key was found before it.
pub(crate) fn value(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut found = None;
    let mut rest = text;
    let mut line = 1;
    loop {
        let (first, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = first.trim();
        let mut consumed = first.len() + 1;
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            match read(rest) {
                Ok((name, value, length)) => {
                    if name == key {
                        found = Some(value);
                    }
                    consumed = length + rest[length..].find('\n').map_or(rest.len() - length, |at| at + 1);
                }
                Err(_) if found.is_some() => return Ok(found),
                Err(why) => return Err(format!("is invalid in line {line}: {why}")),
            }
        }
        if consumed >= rest.len() || (after.is_empty() && consumed > first.len()) {
            return Ok(found);
        }
        line += rest[..consumed].matches('\n').count();
        rest = &rest[consumed..];
    }
}

/// One variable: its name, its value, and the number of bytes that they take.
fn read(text: &str) -> Result<(&str, String, usize), &'static str> {
    let end = text.find('\n').unwrap_or(text.len());
    let equals = text[..end].find('=').ok_or("expected KEY=value")?;
    let name = text[..equals].trim();
    if name.is_empty() || name.contains(|c: char| !(' '..='~').contains(&c)) {
        return Err("a key must be printable ASCII");
    }
    let begin = equals + 1 + text[equals + 1..end].len() - text[equals + 1..end].trim_start().len();
    let Some(quoted) = text[begin..].strip_prefix('\'') else {
        return Ok((name, text[begin..end].trim_end().to_owned(), end));
    };
    let length = quoted.find('\'').ok_or("unclosed quotation mark")?;
    let end = begin + length + 2;
    let beyond = text[end..].lines().next().unwrap_or("").trim();
    if !beyond.is_empty() && !beyond.starts_with('#') {
        return Err("only a comment may follow the closing quotation mark");
    }
    Ok((name, quoted[..length].to_owned(), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables() {
        let text = "# said first\n\nA=1\n  B = ' two words ' # and why\nC='a\nb=#c\n'\r\nD=x y \nE=''\nF=\nA=2\nG=a=b";
        for (key, wanted) in [
            ("A", Some("2")),
            ("B", Some(" two words ")),
            ("C", Some("a\nb=#c\n")),
            ("D", Some("x y")),
            ("E", Some("")),
            ("F", Some("")),
            ("G", Some("a=b")),
            ("b", None),
            ("# said first", None),
        ] {
            assert_eq!(value(text, key), Ok(wanted.map(str::to_owned)), "{key}");
        }
        assert_eq!(value("", "A"), Ok(None));
    }

    #[test]
    fn what_is_no_variable_is_told_with_its_line() {
        for (text, line) in [
            ("A='1'\nnothing", "line 2"),
            ("=1", "line 1"),
            ("A='x\ny'\nB='", "line 3"),
            ("A='1' b", "line 1"),
            ("\u{e4}=1", "line 1"),
        ] {
            assert!(value(text, "Z").unwrap_err().contains(line), "{text:?}");
        }
        assert_eq!(value("A=1\nnothing", "A"), Ok(Some("1".to_owned())));
    }
}
