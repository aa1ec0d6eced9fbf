//! Items of lists of built-in kinds, which have no `apiVersion` and no `kind`: upstream's lists are typed, and say it once. Pure.

/// Appends an object without the two fields. The object is JSON without spaces, as it is stored; what is not is appended as it is.
pub(super) fn push_without_type_meta(out: &mut Vec<u8>, object: &[u8]) {
    let begin = out.len();
    if skip_type_meta(out, object).is_none() {
        out.truncate(begin);
        out.extend_from_slice(object);
    }
}

/// The number of fields that are left out.
const FIELDS: usize = 2;

fn skip_type_meta(out: &mut Vec<u8>, object: &[u8]) -> Option<()> {
    let mut at = object.strip_prefix(b"{")?;
    out.push(b'{');
    let (mut is_first, mut left_out) = (true, 0);
    // Behind the second field everything stays. Fields are sorted by their names: that is behind a few bytes, but for kinds
    // whose data comes before `kind`.
    while left_out < FIELDS && !at.starts_with(b"}") {
        let end = end_of_field(at)?;
        let (field, rest) = at.split_at(end);
        if field.starts_with(br#""apiVersion":"#) || field.starts_with(br#""kind":"#) {
            left_out += 1;
        } else {
            if !is_first {
                out.push(b',');
            }
            is_first = false;
            out.extend_from_slice(field);
        }
        at = rest.strip_prefix(b",").unwrap_or(rest);
    }
    if !is_first && !at.starts_with(b"}") {
        out.push(b',');
    }
    out.extend_from_slice(at);
    at.ends_with(b"}").then_some(())
}

/// The length of a name and its value.
fn end_of_field(text: &[u8]) -> Option<usize> {
    let name = end_of_string(text)?;
    let value = text.get(name..)?.strip_prefix(b":")?;
    let length = match value.first()? {
        b'"' => end_of_string(value)?,
        b'{' | b'[' => end_of_nested(value)?,
        _ => value.iter().position(|byte| matches!(byte, b',' | b'}'))?,
    };
    Some(name + 1 + length)
}

/// The length of a string with its quotes.
fn end_of_string(text: &[u8]) -> Option<usize> {
    let mut from = text.strip_prefix(b"\"").map(|_| 1)?;
    loop {
        let quote = from + text.get(from..)?.iter().position(|byte| *byte == b'"')?;
        let escapes = text[..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
        from = quote + 1;
        if escapes % 2 == 0 {
            return Some(from);
        }
    }
}

/// The length of an object or a list.
fn end_of_nested(text: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => {
                at += end_of_string(&text[at..])?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(object: &str) -> String {
        let mut out = b"[".to_vec();
        push_without_type_meta(&mut out, object.as_bytes());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn two_fields_are_left_out_wherever_they_stand() {
        for object in [
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"kind": "x", "apiVersion": 1}}),
            json!({"apiVersion": "v1", "data": {"kind": "\"}{\\", "a": "\\\""}, "immutable": true, "kind": "ConfigMap", "metadata": {}}),
            json!({"aggregationRule": {"a": [{"b": "]"}, [], 1]}, "apiVersion": "r/v1", "kind": "ClusterRole", "rules": null}),
            json!({"action": "", "apiVersion": "v1", "count": -1.5, "kind": "Event"}),
            json!({"apiVersion": "v1", "kind": "Bare"}),
            json!({"apiVersion": "v1", "\"kind": 1, "kindred": "k", "z": "\\"}),
            json!({"metadata": {}}),
            json!({}),
        ] {
            let mut wanted = object.clone();
            wanted.as_object_mut().unwrap().retain(|name, _| name != "apiVersion" && name != "kind");
            let found = item(&object.to_string());
            assert_eq!(found, format!("[{wanted}"), "{object}");
        }
    }

    #[test]
    fn what_is_no_object_stays() {
        for text in
            ["", "{", "[]", "1", r#"{"a"}"#, r#"{"a":"b"#, r#"{"a":[1"#, r#"{ "kind":1}"#, r#"{"kind":1"#, r#"{"a":]}"#]
        {
            assert_eq!(item(text), format!("[{text}"), "{text}");
        }
    }

    /// Strings of all that could end them.
    #[test]
    fn any_string_is_passed_over() {
        let parts = ["\"", "\\", "{", "}", "]", "kind", ",", ":", "é", "\n"];
        for number in 0..parts.len().pow(4) {
            let text: String = (0..4_u32).map(|digit| parts[number / parts.len().pow(digit) % parts.len()]).collect();
            let object = json!({"apiVersion": "v1", "data": {&text: &text}, "kind": "K", "metadata": &text});
            let found: Value = serde_json::from_str(&item(&object.to_string())[1..]).unwrap();
            assert_eq!(found, json!({"data": {&text: &text}, "metadata": &text}), "{text}");
        }
    }
}
