//! Parses the objects of a manifest file. Pure.

use serde_json::Value;

/// The format of a file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Documents between `---` lines.
    Yaml,
    /// A sequence of values.
    Json,
}

/// The format of a file; `None` for files that are ignored.
#[must_use]
pub fn format_of(name: &str) -> Option<Format> {
    if name.starts_with('.') {
        return None;
    }
    match name.rsplit_once('.')?.1 {
        "yaml" | "yml" => Some(Format::Yaml),
        "json" => Some(Format::Json),
        _ => None,
    }
}

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its first line, from 1.
    pub line: u64,
    /// As in the file.
    pub api_version: String,
    /// As in the file.
    pub kind: String,
    /// `None` when the file has none.
    pub namespace: Option<String>,
    /// Never empty.
    pub name: String,
    /// As in the file; an object of the API gets another.
    pub uid: Option<String>,
    /// The object without fields of the server: status, uid, versions.
    pub value: Value,
}

impl Document {
    /// Its kind and name, for logs.
    #[must_use]
    pub fn show(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Why a document cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ParseError {
    /// Its line, from 1.
    pub line: u64,
    /// The parser's message.
    pub reason: String,
}

/// All objects of the text, in order; an invalid document does not hide the others.
#[must_use]
pub fn read(text: &str, format: Format) -> (Vec<Document>, Vec<ParseError>) {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    let values: Vec<(u64, Result<Value, ParseError>)> = match format {
        Format::Yaml => yaml(text),
        Format::Json => json(text),
    };
    for (line, value) in values {
        match value {
            Ok(Value::Null) => {}
            Ok(value) => collect(line, value, &mut documents, &mut errors),
            Err(error) => errors.push(error),
        }
    }
    (documents, errors)
}

fn yaml(text: &str) -> Vec<(u64, Result<Value, ParseError>)> {
    split(text)
        .into_iter()
        .map(|(start, part)| {
            let parsed = serde_saphyr::from_str_with_options(
                &part,
                serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false },
            );
            let value = parsed.map_err(|error: serde_saphyr::Error| {
                let line = error.location().map_or(1, |l| l.line().max(1));
                ParseError { line: start + line - 1, reason: first_line(&error.to_string()) }
            });
            (start + first_content(&part), value)
        })
        .collect()
}

/// The documents between `---` lines, each with the line (from 1) on which its text begins.
fn split(text: &str) -> Vec<(u64, String)> {
    let mut parts = vec![(1, String::new())];
    for (index, line) in text.lines().enumerate() {
        let rest = line.strip_prefix("---").filter(|r| r.is_empty() || r.starts_with([' ', '\t']));
        let number = u64::try_from(index).unwrap_or(u64::MAX - 1) + 1;
        match rest {
            Some(rest) => parts.push((number, format!("   {rest}\n"))),
            None if line == "..." => {}
            None => {
                if let Some((_, part)) = parts.last_mut() {
                    part.push_str(line);
                    part.push('\n');
                }
            }
        }
    }
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '%']);
    parts.retain(|(_, part)| part.lines().any(is_content));
    parts
}

/// Lines before the first that is neither empty nor a comment.
fn first_content(part: &str) -> u64 {
    let before = part.lines().take_while(|l| l.trim().is_empty() || l.trim_start().starts_with('#')).count();
    u64::try_from(before).unwrap_or(0)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn json(text: &str) -> Vec<(u64, Result<Value, ParseError>)> {
    let mut values = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let line_at = |offset: usize| {
        let skipped = text[offset..].len() - text[offset..].trim_start().len();
        u64::try_from(text[..offset + skipped].matches('\n').count()).unwrap_or(0) + 1
    };
    loop {
        let line = line_at(stream.byte_offset());
        match stream.next() {
            None => return values,
            Some(Ok(value)) => values.push((line, Ok(value))),
            Some(Err(error)) => {
                let error = ParseError { line: u64::try_from(error.line()).unwrap_or(line), reason: error.to_string() };
                values.push((line, Err(error)));
                return values;
            }
        }
    }
}

/// Adds an object, or the items of a list.
fn collect(line: u64, mut value: Value, documents: &mut Vec<Document>, errors: &mut Vec<ParseError>) {
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let mut reject = |reason: &str| errors.push(ParseError { line, reason: reason.to_owned() });
    if !value.is_object() {
        return reject("not an object: expected apiVersion, kind and metadata");
    }
    let (Some(api_version), Some(kind)) = (text(&value, "/apiVersion"), text(&value, "/kind")) else {
        return reject("apiVersion or kind is missing, or is no text");
    };
    if kind.ends_with("List") && value.get("items").is_some_and(Value::is_array) {
        let items = value.get_mut("items").map(Value::take);
        for item in items.as_ref().and_then(Value::as_array).into_iter().flatten() {
            collect(line, item.clone(), documents, errors);
        }
        return;
    }
    let Some(name) = text(&value, "/metadata/name").filter(|n| !n.is_empty()) else {
        return reject("metadata.name is missing: a manifest's object needs a name of its own");
    };
    let uid = text(&value, "/metadata/uid").filter(|u| !u.is_empty());
    // Fields of the server are ignored in a file.
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"] {
            meta.remove(field);
        }
    }
    let namespace = text(&value, "/metadata/namespace").filter(|n| !n.is_empty());
    documents.push(Document { line, api_version, kind, namespace, name, uid, value });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_manifests_are_read() {
        assert_eq!(format_of("a.yaml"), Some(Format::Yaml));
        assert_eq!(format_of("a.yml"), Some(Format::Yaml));
        assert_eq!(format_of("a.json"), Some(Format::Json));
        for name in [".a.yaml", "a.yaml~", "a.txt", "yaml", ".a.yaml.swp"] {
            assert_eq!(format_of(name), None, "{name}");
        }
    }

    #[test]
    fn documents_keep_their_lines_and_broken_ones_do_not_hide_others() {
        let text = "# head\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nstatus: {}\n---\nkind: [\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  namespace: x\ndata:\n  mode: |\n    ---x\n---\n\napiVersion: v1\nkind: Secret\n";
        let (documents, errors) = read(text, Format::Yaml);
        let shown: Vec<(u64, String)> = documents.iter().map(|d| (d.line, d.show())).collect();
        assert_eq!(shown, [(3, "Namespace a".to_owned()), (10, "ConfigMap x/b".to_owned())]);
        assert!(documents[0].value.get("status").is_none());
        assert_eq!(errors.len(), 2);
        assert!((7..=9).contains(&errors[0].line), "{:?}", errors[0]);
        assert_eq!(errors[1].line, 20);
        assert!(errors[1].reason.contains("metadata.name"));
    }

    #[test]
    fn json_streams_and_lists_are_read() {
        let text = "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}]}\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"b\"}}\n{oops";
        let (documents, errors) = read(text, Format::Json);
        let lines: Vec<(u64, &str)> = documents.iter().map(|d| (d.line, d.name.as_str())).collect();
        assert_eq!(lines, [(1, "a"), (3, "b")]);
        assert_eq!(errors[0].line, 4);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,80}") {
            let _ = (read(&text, Format::Yaml), read(&text, Format::Json));
        }
    }
}
