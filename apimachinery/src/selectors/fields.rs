//! Field selectors: `metadata.name=x,spec.nodeName!=y`, on the selectable fields of each type.

use std::borrow::Cow;

use serde_json::Value;

use super::SelectorError;

/// A field by which objects of a type can be selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectableField {
    /// The name in selectors.
    pub label: Cow<'static, str>,
    /// Dotted paths; the first with a text, number or boolean that is not empty counts. A number is an item of a list:
    /// `status.podIPs.0.ip`.
    pub paths: Cow<'static, [Cow<'static, str>]>,
    /// The value of an absent field.
    pub absent: Cow<'static, str>,
}

impl SelectableField {
    /// A field whose label is its path, and which is empty when it is absent.
    #[must_use]
    pub const fn path(path: &'static str) -> Self {
        Self { label: Cow::Borrowed(path), paths: Cow::Borrowed(&[]), absent: Cow::Borrowed("") }
    }

    /// A field whose label is its path, with the value of an absent one.
    #[must_use]
    pub const fn with_absent(path: &'static str, absent: &'static str) -> Self {
        Self { label: Cow::Borrowed(path), paths: Cow::Borrowed(&[]), absent: Cow::Borrowed(absent) }
    }

    /// A field that is found at the first of several paths.
    #[must_use]
    pub const fn at(label: &'static str, paths: &'static [Cow<'static, str>]) -> Self {
        Self { label: Cow::Borrowed(label), paths: Cow::Borrowed(paths), absent: Cow::Borrowed("") }
    }

    /// The field's value in an object.
    #[must_use]
    pub fn value(&self, object: &Value) -> String {
        let own = [Cow::Borrowed(&*self.label)];
        let paths: &[Cow<'_, str>] = if self.paths.is_empty() { &own } else { &self.paths };
        paths.iter().find_map(|path| text_at(object, path)).unwrap_or_else(|| self.absent.clone().into_owned())
    }
}

/// Every type has these.
static METADATA: [SelectableField; 2] =
    [SelectableField::path("metadata.name"), SelectableField::path("metadata.namespace")];

/// A parsed field selector; the empty one matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    /// Field, wanted value, whether it must be equal.
    requirements: Vec<(SelectableField, String, bool)>,
}

impl FieldSelector {
    /// Parses the query parameter. `selectable` are the fields of the type besides name and namespace; `None` for a type
    /// that upstream registers no conversion of field labels for, which it refuses in other words.
    ///
    /// # Errors
    /// For fields that are not selectable, and for malformed text.
    pub fn parse(text: &str, selectable: Option<&[SelectableField]>) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (path, value, equal) in terms(text)? {
            let field = METADATA.iter().chain(selectable.into_iter().flatten()).find(|field| field.label == path);
            let Some(field) = field else {
                return Err(SelectorError(match selectable {
                    Some(_) => format!("field label not supported: {path}"),
                    None => format!(
                        "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    ),
                }));
            };
            requirements.push((field.clone(), value, equal));
        }
        Ok(Self { requirements })
    }

    /// All fields that can be selected of a type.
    pub fn selectable(own: &[SelectableField]) -> impl Iterator<Item = &SelectableField> {
        METADATA.iter().chain(own)
    }

    /// The value that the selector requires of `field`, if any: `metadata.name=x` makes a list a single read.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        let found = self.requirements.iter().find(|(known, _, equal)| *equal && known.label == field);
        found.map(|(_, value, _)| value.as_str())
    }

    /// Whether the selector matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether the selector says the value of one field and nothing else.
    #[must_use]
    pub fn is_one_exact(&self) -> bool {
        matches!(self.requirements.as_slice(), [(_, _, true)])
    }

    /// Whether an object matches.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|(field, wanted, equal)| (field.value(object) == *wanted) == *equal)
    }

    /// Whether an object matches whose fields have these values, by their labels.
    pub fn matches_values<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.requirements.iter().all(|(field, wanted, equal)| (value(&field.label) == wanted) == *equal)
    }
}

/// Field, value and whether it must be equal, of each term in upstream's order, which is that of the alphabet.
fn terms(text: &str) -> Result<Vec<(&str, String, bool)>, SelectorError> {
    let mut parts = split(text);
    parts.sort_unstable();
    let of = |part| {
        let wrong = || SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'"));
        let (path, equal, value) = operator(part).ok_or_else(wrong)?;
        Ok((path, unescaped(value)?, equal))
    };
    parts.into_iter().filter(|part| !part.is_empty()).map(of).collect()
}

/// The terms between commas; one behind a backslash is part of a value.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut escaped = false;
    let is_end = |c: char| {
        let end = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        end
    };
    text.split(is_end).collect()
}

/// What is before and behind the first operator, and whether that asks for equality.
pub(super) fn operator(term: &str) -> Option<(&str, bool, &str)> {
    let (at, _) = term.char_indices().find(|(at, _)| term[*at..].starts_with('=') || term[*at..].starts_with("!="))?;
    let (path, behind) = term.split_at(at);
    match behind.strip_prefix("!=") {
        Some(value) => Some((path, false, value)),
        None => Some((path, true, behind.strip_prefix("==").unwrap_or(&behind[1..]))),
    }
}

/// A value as it is meant: `\\`, `\,` and `\=` are what they escape, and nothing else can be.
pub(super) fn unescaped(value: &str) -> Result<String, SelectorError> {
    let mut found = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(meant @ ('\\' | ',' | '=')) => found.push(meant),
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(SelectorError(format!("invalid field selector: invalid escape sequence: \\{other}")));
                }
            },
            // Upstream's message has the code point.
            ',' | '=' => {
                let number = u32::from(c);
                return Err(SelectorError(format!("invalid field selector: unescaped character in value: {number}")));
            }
            other => found.push(other),
        }
    }
    Ok(found)
}

/// The text, number or boolean at a path, unless it is absent or empty.
fn text_at(object: &Value, path: &str) -> Option<String> {
    let found = path.split('.').try_fold(object, |value, key| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })?;
    match found {
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(found.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static POD: [SelectableField; 4] = [
        SelectableField::path("spec.nodeName"),
        SelectableField::with_absent("spec.hostNetwork", "false"),
        SelectableField::path("status.phase"),
        SelectableField::at("address", &[Cow::Borrowed("status.podIP"), Cow::Borrowed("status.podIPs.0.ip")]),
    ];

    #[test]
    fn fields() {
        let pod = serde_json::json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "", "podIPs": [{"ip": "10.0.0.1"}]}});
        for (selector, matches) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("spec.nodeName=n,status.phase!=Failed", true),
            ("spec.nodeName=", false),
            ("spec.hostNetwork=false", true),
            ("address=10.0.0.1", true),
            ("address=10.0.0.2", false),
        ] {
            assert_eq!(FieldSelector::parse(selector, Some(&POD)).unwrap().matches(&pod), matches, "{selector}");
        }
        let error = FieldSelector::parse("spec.color=red", Some(&POD)).unwrap_err().to_string();
        assert_eq!(error, "field label not supported: spec.color");
        let error = FieldSelector::parse("data.color=red", None).unwrap_err().to_string();
        let fields = r#""metadata.name", "metadata.namespace""#;
        assert_eq!(error, format!(r#""data.color" is not a known field selector: only {fields}"#));
        assert!(FieldSelector::parse("metadata.name=a", None).is_ok());
        assert!(FieldSelector::parse("nonsense", Some(&POD)).is_err());
        let fields = FieldSelector::parse("metadata.name=a,spec.nodeName!=n", Some(&POD)).unwrap();
        assert_eq!((fields.exact("metadata.name"), fields.exact("spec.nodeName")), (Some("a"), None));
    }
}
