//! Reads the objects out of a manifest file's text. Pure.

use serde_json::Value;

/// The format of a file, by its name's ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

/// The format that a file's name stands for; `None` for files that are left alone.
pub(crate) fn format_of(name: &str) -> Option<Format> {
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
pub(crate) struct Document {
    /// Where it begins, from 1.
    pub(crate) line: u64,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl Document {
    /// How a log names it.
    pub(crate) fn show(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(crate) struct Broken {
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// All objects of the text, in order; a broken document does not hide the others.
pub(crate) fn read(text: &str, format: Format) -> (Vec<Document>, Vec<Broken>) {
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
    documents.push(Document { line, api_version, kind, namespace, name, value });
}
