//! Path elements: how one step from an object to one of its parts is named, in a path and in FieldsV1.
//!
//! Upstream: `structured-merge-diff/fieldpath/element.go` and `serialize-pe.go`.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

use super::value;

/// One step of a path.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of a struct or an entry of a map: `f:NAME`.
    Field(String),
    /// The item of a list of maps with these values of the key fields, in order of their names: `k:{"KEY":VALUE}`.
    Key(Vec<(String, Value)>),
    /// The item of a set with this value: `v:VALUE`.
    Value(Value),
    /// The item of an atomic list at this index: `i:INDEX`. Written by no current server, read from older ones.
    Index(i64),
}

/// Why the key of a FieldsV1 document is no path element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathElementError {
    /// Of a kind that a later version may know: such elements are left out.
    #[error("path element {0:?} is of an unknown kind")]
    UnknownKind(String),
    /// Not `KIND:CONTENT`, or with a content that the kind does not have.
    #[error("{0:?} is no path element")]
    Malformed(String),
}

impl PathElement {
    /// Makes a key from its fields in any order.
    #[must_use]
    pub fn key(mut fields: Vec<(String, Value)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Key(fields)
    }

    /// Reads the form of FieldsV1.
    ///
    /// # Errors
    /// When the text has none of the four prefixes, or is malformed.
    pub fn parse(text: &str) -> Result<Self, PathElementError> {
        let malformed = || PathElementError::Malformed(text.to_owned());
        let (kind, content) = text.split_once(':').filter(|(kind, _)| kind.len() == 1).ok_or_else(malformed)?;
        match kind {
            "f" => Ok(Self::Field(content.to_owned())),
            "k" => match serde_json::from_str(content) {
                Ok(Value::Object(fields)) => Ok(Self::key(fields.into_iter().collect())),
                _ => Err(malformed()),
            },
            "v" => serde_json::from_str(content).map(Self::Value).map_err(|_| malformed()),
            "i" => content.parse().map(Self::Index).map_err(|_| malformed()),
            _ => Err(PathElementError::UnknownKind(text.to_owned())),
        }
    }

    /// The form of FieldsV1, as Go writes it.
    #[must_use]
    pub fn serialize(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(fields) => {
                let mut out = "k:{".to_owned();
                for (at, (name, field)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(name.as_str()).to_string());
                    out.push(':');
                    out.push_str(&crate::go_json(field));
                }
                out.push('}');
                out
            }
            Self::Value(item) => {
                let mut out = "v:".to_owned();
                out.push_str(&crate::go_json(item));
                out
            }
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let each = a.iter().zip(b).map(|(a, b)| a.0.cmp(&b.0).then_with(|| value::compare(&a.1, &b.1)));
                value::compare_each(each, a.len(), b.len())
            }
            (Self::Value(a), Self::Value(b)) => value::compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// The form of error messages: `.field`, `[key="value"]`, `[="value"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (at, (name, field)) in fields.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={field}")?;
                }
                f.write_str("]")
            }
            Self::Value(item) => write!(f, "[={item}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A path from the root of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Path(pub Vec<PathElement>);

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| write!(f, "{element}"))
    }
}
