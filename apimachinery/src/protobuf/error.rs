use crate::schema::Schema;

/// Why an object cannot be encoded or decoded, and in which of its fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}{}{problem}", if path.is_empty() { "" } else { ": " })]
pub struct Error {
    /// The field, as `spec.containers.name`; empty for the object itself.
    pub path: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bytes end inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint has more than ten bytes.
    #[error("a number has more than 64 bits")]
    VarintOverflow,
    /// A tag has a number that no field can have.
    #[error("{0} is no field number")]
    FieldNumber(u64),
    /// A tag has a wire type that is not in use (groups, or none at all).
    #[error("wire type {0} is not supported")]
    UnsupportedWireType(u64),
    /// A field has another wire type than its type has.
    #[error("wire type {found} does not fit the field's type {expected}")]
    WireType {
        /// The field's type in the schema.
        expected: String,
        /// The wire type.
        found: u8,
    },
    /// Text is not UTF-8.
    #[error("the text is not UTF-8")]
    Utf8,
    /// A time is outside of the years that can be written, or has more than a second of nanoseconds.
    #[error("the time is out of range")]
    TimeRange,
    /// Raw bytes are not JSON.
    #[error("the raw value is not JSON")]
    Json,
    /// Too many objects and lists are inside one another.
    #[error("more than {MAX} objects and lists are nested", MAX = crate::MAX_DEPTH)]
    TooDeep,
    /// The message has more values than an object can sensibly have.
    #[error("the message has too many values")]
    TooManyValues,
    /// A JSON value does not fit the field's type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// The field's type in the schema.
        expected: String,
        /// The JSON type or text that was found.
        found: String,
    },
    /// The type is not on the wire, as those of custom resources.
    #[error("the type {0} has no protobuf representation")]
    NotOnWire(String),
    /// The bytes do not begin with the magic number of the envelope.
    #[error("the body does not begin with the magic number of Kubernetes' protobuf")]
    Magic,
    /// The envelope holds something else than plain protobuf.
    #[error("the content encoding {0:?} is not supported")]
    ContentEncoding(String),
}

impl Error {
    /// The error of a field inside the field `name`.
    pub(super) fn inside(mut self, name: &str) -> Self {
        if self.path.is_empty() {
            name.clone_into(&mut self.path);
        } else {
            self.path = format!("{name}.{}", self.path);
        }
        self
    }

    pub(super) fn wrong_type(schema: &Schema, found: &serde_json::Value) -> Self {
        let mut found = found.to_string();
        found.truncate(found.char_indices().nth(SHOWN_CHARACTERS).map_or(found.len(), |(at, _)| at));
        Problem::Type { expected: schema.to_string(), found }.into()
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self { path: String::new(), problem }
    }
}

/// How much of a value an error shows.
const SHOWN_CHARACTERS: usize = 40;
