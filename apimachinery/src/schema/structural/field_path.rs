//! Paths to fields that a schema describes, as rules and selectable fields name them; upstream's `cel.ValidFieldPath`.

use serde_json::Value;

/// Where a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath<'a> {
    /// The path as errors write it: `spec.ports[http]`.
    pub text: String,
    /// The schema of the field; nothing where a map takes any values.
    pub schema: Option<&'a Value>,
}

/// Follows a path such as `.spec.a` or `.spec['a-b']` through a schema. Whether `['…']` may be part of it depends on what the
/// path is for.
///
/// # Errors
/// What is wrong with the path.
pub fn field_path<'a>(path: &str, schema: &'a Value, brackets: bool) -> Result<FieldPath<'a>, String> {
    const END: &str = "unexpected end of JSON path";
    let mut found = FieldPath { text: String::new(), schema: Some(schema) };
    let mut rest = path;
    while let Some(token) = next(&mut rest) {
        match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let token = next(&mut rest).ok_or(END)?;
                let quoted = token.strip_prefix('\'').and_then(|token| token.strip_suffix('\''));
                let name = quoted.ok_or_else(|| format!("expected single quoted string but got {token}"))?;
                let name = unescaped(name).map_err(|why| format!("invalid string literal: {why}"))?;
                found.enter(&name)?;
                match next(&mut rest).ok_or(END)? {
                    "]" => {}
                    token => return Err(format!("expected ] but got {token}")),
                }
            }
            "." => found.enter(next(&mut rest).ok_or(END)?)?,
            token => return Err(format!("expected [ or . but got: {token}")),
        }
    }
    Ok(found)
}

impl FieldPath<'_> {
    /// Goes into a property, or into a value of a map.
    fn enter(&mut self, name: &str) -> Result<(), &'static str> {
        const UNKNOWN: &str = "does not refer to a valid field";
        let schema = self.schema.ok_or(UNKNOWN)?;
        if let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) {
            self.schema = Some(properties.get(name).ok_or(UNKNOWN)?);
            if !self.text.is_empty() {
                self.text.push('.');
            }
            self.text.push_str(name);
        } else {
            let values = schema.get("additionalProperties").filter(|values| !values.is_null()).ok_or(UNKNOWN)?;
            self.schema = Some(values).filter(|values| values.is_object());
            self.text.extend(["[", name, "]"]);
        }
        Ok(())
    }
}

/// The next token: a delimiter, a quoted name, or what stands before the next delimiter.
fn next<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let is_delimiter = |c: char| matches!(c, '.' | '[' | ']');
    let first = rest.chars().next()?;
    let end = if first == '\'' {
        let bytes = rest.as_bytes();
        (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\').map_or(rest.len(), |at| at + 1)
    } else if is_delimiter(first) {
        1
    } else {
        rest.find(is_delimiter).unwrap_or(rest.len())
    };
    let (token, after) = rest.split_at(end);
    *rest = after;
    Some(token)
}

/// A name without its escapes.
fn unescaped(name: &str) -> Result<String, String> {
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        // A backslash at the end of a line or of the name stands for itself.
        if c != '\\' || chars.peek().is_none_or(|next| *next == '\n') {
            out.push(c);
            continue;
        }
        match chars.next().unwrap_or_default() {
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            c @ ('\'' | '\\') => out.push(c),
            c => return Err(format!("invalid escape char \\{c}")),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The cases of upstream's `TestValidateFieldPath`, and what the tokens make of odd ones.
    #[test]
    fn paths_lead_to_fields_or_say_why_not() {
        let schema = json!({"type": "object", "properties": {
            "foo": {"type": "object", "properties": {
                "child": {"type": "string"}, "f.o": {"type": "object", "properties": {"x": {"type": "string"}}},
                "it's": {"type": "string"}, "34": {"type": "string"}, "map": {"type": "object",
                "additionalProperties": {"type": "object", "properties": {"v": {"type": "string"}}}},
                "free": {"type": "object", "properties": {}, "additionalProperties": true}}}}});
        for (path, wanted) in [
            (".foo.child", Ok("foo.child")),
            ("['foo'].child", Ok("foo.child")),
            (".foo['f.o'].x", Ok("foo.f.o.x")),
            (".foo['it\\'s']", Ok("foo.it's")),
            (".foo.34", Ok("foo.34")),
            (".foo.map['a.b'].v", Ok("foo.map[a.b].v")),
            (".foo.map.key", Ok("foo.map[key]")),
            (".foo.free.key", Ok("foo.free[key]")),
            ("", Ok("")),
            (".foo.free.key.more", Err("does not refer to a valid field")),
            (".foo.none", Err("does not refer to a valid field")),
            (".foo.child.more", Err("does not refer to a valid field")),
            (".foo.", Err("unexpected end of JSON path")),
            ("foo", Err("expected [ or . but got: foo")),
            (".foo]", Err("expected [ or . but got: ]")),
            (".foo[0]", Err("expected single quoted string but got 0")),
            (".foo['child'", Err("unexpected end of JSON path")),
            (".foo['child'.", Err("expected ] but got .")),
            (".foo[", Err("unexpected end of JSON path")),
            (".foo['a\\q']", Err("invalid string literal: invalid escape char \\q")),
            (".foo['child", Err("expected single quoted string but got 'child")),
        ] {
            let found = field_path(path, &schema, true);
            assert_eq!(found.as_ref().map(|found| &*found.text).map_err(String::as_str), wanted, "{path}");
        }
        let found = field_path(".foo['child']", &schema, false);
        assert_eq!(found, Err("array notation is not allowed".to_owned()));
    }
}
