//! FieldsV1: the JSON form of a set of fields in `metadata.managedFields`.
//!
//! A tree of objects whose keys are path elements; `.` says that the field itself is in the set, and so does an empty
//! object. Upstream: `structured-merge-diff/fieldpath/serialize.go`.

use serde_json::{Map, Value};

use super::{
    path::{PathElement, PathElementError},
    set::FieldSet,
};

/// The depth to which a document is read: more than any object that a request may have.
const MAX_DEPTH: usize = 256;

/// Why a FieldsV1 document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldsV1Error {
    /// A value in it is no object.
    #[error("a value of fieldsV1 is no object")]
    NotAnObject,
    /// A key of it is no path element.
    #[error(transparent)]
    PathElement(#[from] PathElementError),
    /// It is nested deeper than any object.
    #[error("fieldsV1 is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl FieldSet {
    /// Reads a FieldsV1 document. Path elements of unknown kinds are left out.
    ///
    /// # Errors
    /// When the document is malformed.
    pub fn from_fields_v1(document: &Value) -> Result<Self, FieldsV1Error> {
        Ok(read(document, 0)?.0)
    }

    /// The FieldsV1 document as a value: its keys are in the order of `serde_json::Map`.
    #[must_use]
    pub fn to_fields_v1(&self) -> Value {
        let mut out = Map::new();
        for (element, is_member, child) in self.nodes() {
            let mut inner = child.map_or_else(|| Value::Object(Map::new()), Self::to_fields_v1);
            if let (true, Some(_), Value::Object(fields)) = (is_member, child, &mut inner) {
                fields.insert(".".to_owned(), Value::Object(Map::new()));
            }
            out.insert(element.serialize(), inner);
        }
        Value::Object(out)
    }

    /// The bytes of the FieldsV1 document, as Go writes them: keys in the order of path elements, `.` first.
    #[must_use]
    pub fn to_fields_v1_json(&self) -> String {
        let mut out = String::new();
        self.write(false, &mut out);
        out
    }

    fn write(&self, is_member: bool, out: &mut String) {
        out.push('{');
        let mut first = true;
        if is_member {
            out.push_str("\".\":{}");
            first = false;
        }
        for (element, is_member, child) in self.nodes() {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            out.push_str(&Value::String(element.serialize()).to_string());
            out.push(':');
            match child {
                Some(child) => child.write(is_member, out),
                None => out.push_str("{}"),
            }
        }
        out.push('}');
    }

    /// Each path element of this level, whether it is in the set itself, and what is in it.
    fn nodes(&self) -> impl Iterator<Item = (&PathElement, bool, Option<&Self>)> {
        let (mut members, mut children) = (self.members.iter().peekable(), self.children.iter().peekable());
        std::iter::from_fn(move || match (members.peek(), children.peek()) {
            (None, None) => None,
            (Some(member), Some((element, _))) if *member == element => {
                members.next();
                children.next().map(|(element, child)| (element, true, Some(child)))
            }
            (Some(member), child) if child.is_none_or(|(element, _)| *member < element) => {
                members.next().map(|member| (member, true, None))
            }
            _ => children.next().map(|(element, child)| (element, false, Some(child))),
        })
    }
}

/// The set, and whether the field that it belongs to is itself a member.
fn read(document: &Value, depth: usize) -> Result<(FieldSet, bool), FieldsV1Error> {
    if depth > MAX_DEPTH {
        return Err(FieldsV1Error::TooDeep);
    }
    let empty = Map::new();
    let fields = match document {
        // As Go reads it.
        Value::Null if depth > 0 => &empty,
        document => document.as_object().ok_or(FieldsV1Error::NotAnObject)?,
    };
    let (mut set, mut is_member) = (FieldSet::default(), false);
    for (key, inner) in fields {
        if key == "." {
            is_member = true;
            continue;
        }
        let element = match PathElement::parse(key) {
            Ok(element) => element,
            Err(PathElementError::UnknownKind(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        let (child, child_is_member) = read(inner, depth + 1)?;
        if child_is_member {
            set.insert_member(element.clone());
        }
        set.insert_child(element, child);
    }
    let is_member = is_member || set.is_empty();
    Ok((set, is_member))
}
