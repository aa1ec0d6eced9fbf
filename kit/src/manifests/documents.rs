//! Reads the objects out of a manifest file's text. Pure.

use serde_json::Value;

/// The format of a file, by its name's ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Documents between `---` lines.
    Yaml,
    /// Values one after the other.
    Json,
}

/// The format that a file's name stands for; `None` for files that are left alone.
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
    /// Where it begins, from 1.
    pub line: u64,
    /// As the file has it.
    pub api_version: String,
    /// As the file has it.
    pub kind: String,
    /// None when the file leaves it out.
    pub namespace: Option<String>,
    /// Never empty.
    pub name: String,
    /// What the file asks for; an object of the API gets another.
    pub uid: Option<String>,
    /// The object without what a server owns: status, uid, versions.
    pub value: Value,
}

impl Document {
    /// How a log names it.
    #[must_use]
    pub fn show(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Broken {
    /// Where, from 1.
    pub line: u64,
    /// What the reader says.
    pub reason: String,
}

/// All objects of the text, in order; a broken document does not hide the others.
#[must_use]
pub fn read(text: &str, format: Format) -> (Vec<Document>, Vec<Broken>) {
    let (mut documents, mut broken) = (Vec::new(), Vec::new());
    let values: Vec<(u64, Result<Value, Broken>)> = match format {
        Format::Yaml => yaml(text),
        Format::Json => json(text),
    };
    for (line, value) in values {
        match value {
            Ok(Value::Null) => {}
            Ok(value) => take(line, value, &mut documents, &mut broken),
            Err(error) => broken.push(error),
        }
    }
    (documents, broken)
}

fn yaml(text: &str) -> Vec<(u64, Result<Value, Broken>)> {
    split(text)
        .into_iter()
        .map(|(start, part)| {
            let parsed = serde_saphyr::from_str_with_options(
                &part,
                serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false },
            );
            let value = parsed.map_err(|error: serde_saphyr::Error| {
                let line = error.location().map_or(1, |l| l.line().max(1));
                Broken { line: start + line - 1, reason: first_line(&error.to_string()) }
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

fn json(text: &str) -> Vec<(u64, Result<Value, Broken>)> {
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
                let broken = Broken { line: u64::try_from(error.line()).unwrap_or(line), reason: error.to_string() };
                values.push((line, Err(broken)));
                return values;
            }
        }
    }
}

/// Takes a value apart: lists hold objects of their own.
fn take(line: u64, mut value: Value, documents: &mut Vec<Document>, broken: &mut Vec<Broken>) {
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let mut refuse = |reason: &str| broken.push(Broken { line, reason: reason.to_owned() });
    if !value.is_object() {
        return refuse("not an object: expected apiVersion, kind and metadata");
    }
    let (Some(api_version), Some(kind)) = (text(&value, "/apiVersion"), text(&value, "/kind")) else {
        return refuse("apiVersion or kind is missing, or is no text");
    };
    if kind.ends_with("List") && value.get("items").is_some_and(Value::is_array) {
        let items = value.get_mut("items").map(Value::take);
        for item in items.as_ref().and_then(Value::as_array).into_iter().flatten() {
            take(line, item.clone(), documents, broken);
        }
        return;
    }
    let Some(name) = text(&value, "/metadata/name").filter(|n| !n.is_empty()) else {
        return refuse("metadata.name is missing: a manifest's object needs a name of its own");
    };
    let uid = text(&value, "/metadata/uid").filter(|u| !u.is_empty());
    // What the server owns has no place in a file.
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
        let (documents, broken) = read(text, Format::Yaml);
        let shown: Vec<(u64, String)> = documents.iter().map(|d| (d.line, d.show())).collect();
        assert_eq!(shown, [(3, "Namespace a".to_owned()), (10, "ConfigMap x/b".to_owned())]);
        assert!(documents[0].value.get("status").is_none());
        assert_eq!(broken.len(), 2);
        assert!((7..=9).contains(&broken[0].line), "{:?}", broken[0]);
        assert_eq!(broken[1].line, 20);
        assert!(broken[1].reason.contains("metadata.name"));
    }

    #[test]
    fn json_streams_and_lists_are_read() {
        let text = "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}]}\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"b\"}}\n{oops";
        let (documents, broken) = read(text, Format::Json);
        let lines: Vec<(u64, &str)> = documents.iter().map(|d| (d.line, d.name.as_str())).collect();
        assert_eq!(lines, [(1, "a"), (3, "b")]);
        assert_eq!(broken[0].line, 4);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,80}") {
            let _ = (read(&text, Format::Yaml), read(&text, Format::Json));
        }
    }
}
