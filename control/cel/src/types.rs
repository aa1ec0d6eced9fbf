//! Types of expressions: cel-go's `common/types/types.go`.

use std::{fmt, sync::Arc};

/// A type. Written as cel-go's errors write it: `list(int)`, `map(string, dyn)`, `optional_type(string)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// Known only when a value is there.
    Dyn,
    /// A value in an envelope, `google.protobuf.Any`: like `Dyn`, but nothing goes over its elements.
    Any,
    /// Nothing but null.
    Null,
    /// True or false.
    Bool,
    /// 64 bits with a sign.
    Int,
    /// 64 bits without a sign.
    Uint,
    /// A float of 64 bits.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A span of time in nanoseconds.
    Duration,
    /// A moment.
    Timestamp,
    /// A list of elements of one type.
    List(Arc<Self>),
    /// A map: its keys' type and its values' type.
    Map(Arc<(Self, Self)>),
    /// A type as a value.
    Type(Arc<Self>),
    /// A type that is known by its name and parameters alone, such as `optional_type(int)` and `net.IP`.
    Opaque(Arc<str>, Arc<[Self]>),
    /// A type with fields, by its name.
    Object(Arc<str>),
    /// Stands for any one type in a signature, or for one that is not known yet.
    Param(Param),
    /// Of what an error was reported.
    Error,
}

/// What a type parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Param {
    /// One that is declared, by its letter.
    Named(char),
    /// One that the checker made, by its number.
    Free(u32),
}

/// The name of the type of optional values.
const OPTIONAL: &str = "optional_type";

impl Type {
    /// A list of elements of a type.
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    /// A map from keys of a type to values of a type.
    #[must_use]
    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// A value of a type, or nothing.
    #[must_use]
    pub fn optional(value: Self) -> Self {
        Self::Opaque(OPTIONAL.into(), [value].into())
    }

    /// A type with fields.
    #[must_use]
    pub fn object(name: &str) -> Self {
        Self::Object(name.into())
    }

    /// A type as a value.
    pub(crate) fn type_of(of: Self) -> Self {
        Self::Type(Arc::new(of))
    }

    /// What an optional type holds.
    pub(crate) fn unwrapped(&self) -> Option<&Self> {
        match self {
            Self::Opaque(name, params) if &**name == OPTIONAL => params.first(),
            _ => None,
        }
    }

    /// Whether it says nothing of its values; cel-go's `isDyn` of the checker.
    pub(crate) const fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    pub(crate) const fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || matches!(self, Self::Error)
    }

    /// The name of the type as a value: cel-go's `TypeName`.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Any => "google.protobuf.Any",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
            Self::Opaque(name, _) | Self::Object(name) => name,
            Self::Param(_) => "",
            Self::Error => "*error*",
        }
    }

    /// The type in the words of cel-go's `Type.String`, which differ from those of its errors for a few types.
    #[must_use]
    pub fn declared(&self) -> String {
        let params: Vec<String> = match self {
            Self::Map(types) => vec![types.0.declared(), types.1.declared()],
            Self::Param(_) => return format!("<{self}>"),
            other => other.params().iter().map(Self::declared).collect(),
        };
        if params.is_empty() { self.name().to_owned() } else { format!("{}({})", self.name(), params.join(", ")) }
    }

    /// The types that it is made of.
    pub(crate) fn params(&self) -> &[Self] {
        match self {
            Self::List(one) | Self::Type(one) => std::slice::from_ref(one),
            Self::Opaque(_, params) => params,
            _ => &[],
        }
    }

    /// Whether both are the same, whatever their parameters are called; cel-go's `IsEquivalentType`.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Param(_), Self::Param(_)) => true,
            (Self::Map(one), Self::Map(other)) => one.0.is_equivalent(&other.0) && one.1.is_equivalent(&other.1),
            (Self::List(one), Self::List(other)) | (Self::Type(one), Self::Type(other)) => one.is_equivalent(other),
            (Self::Opaque(name, one), Self::Opaque(other_name, other)) => {
                name == other_name
                    && one.len() == other.len()
                    && one.iter().zip(other.iter()).all(|(one, other)| one.is_equivalent(other))
            }
            _ => self == other,
        }
    }

    /// Whether a value of type `from` is one of this type; cel-go's `IsAssignableType`.
    pub(crate) fn takes(&self, from: &Self) -> bool {
        match (self, from) {
            (Self::Dyn | Self::Any | Self::Param(_), _) => true,
            (Self::List(to), Self::List(from)) | (Self::Type(to), Self::Type(from)) => to.takes(from),
            (Self::Map(to), Self::Map(from)) => to.0.takes(&from.0) && to.1.takes(&from.1),
            (Self::Opaque(name, to), Self::Opaque(other, from)) => {
                name == other && to.len() == from.len() && to.iter().zip(from.iter()).all(|(to, from)| to.takes(from))
            }
            _ => self == from,
        }
    }
}

impl fmt::Display for Type {
    /// cel-go's `FormatCELType`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Null => f.write_str("null"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Error => f.write_str("!error!"),
            Self::Param(Param::Named(letter)) => write!(f, "{letter}"),
            Self::Param(Param::Free(number)) => write!(f, "_var{number}"),
            Self::Map(types) => write!(f, "map({}, {})", types.0, types.1),
            other => {
                f.write_str(other.name())?;
                for (index, param) in other.params().iter().enumerate() {
                    write!(f, "{}{param}", if index == 0 { "(" } else { ", " })?;
                }
                if other.params().is_empty() { Ok(()) } else { f.write_str(")") }
            }
        }
    }
}
