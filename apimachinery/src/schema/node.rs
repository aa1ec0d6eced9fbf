//! The node that describes a value, and the parts of it.
//!
//! The shape is that of a structural schema; built-in types have in addition what Go's struct tags say. A tree of nodes is
//! immutable once made and is shared by `Arc`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use super::{Pattern, Properties, WireOrder};

/// What is known of one value: an object, a field, an item of a list or a value of a map.
///
/// Attributes of a field are in the node of its value, as in OpenAPI. Where [`Schema::kind`] is [`Kind::Named`], they
/// belong to this use of the named type, and [`Schema::resolved`] is the type itself.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// The type, and the nodes of what is inside.
    pub kind: Kind,
    /// How a list is merged, by server-side apply and in the schema of a CustomResourceDefinition; `None` where it is not
    /// declared, which is the same as atomic.
    pub list_type: Option<ListType>,
    /// How an object or map is merged by server-side apply; `None` where it is not declared. See [`Schema::is_atomic`].
    pub map_type: Option<MapType>,
    /// How a strategic merge patch changes the field.
    pub patch_strategy: PatchStrategy,
    /// The field that identifies items of a list in a strategic merge patch.
    pub merge_key: Option<Arc<str>>,
    /// Whether a CustomResourceDefinition declares no type: then any value is of the type, also where [`Schema::kind`] says
    /// what an object or list would contain.
    pub untyped: bool,
    /// Whether `null` is a value of its own. Only in the schema of a CustomResourceDefinition.
    pub nullable: bool,
    /// Whether fields that the schema does not name are kept, with everything inside them.
    pub preserve_unknown_fields: bool,
    /// Whether the value is an object of its own, with `apiVersion`, `kind` and `metadata`. The root of a custom resource
    /// is one; roots of built-in types are not marked.
    pub embedded_resource: bool,
    /// Whether a list of strings is a message of its own in protobuf (`repeated string items = 1`), with the name in
    /// [`Schema::go_type`], as `ExtraValue` of authentication.k8s.io.
    pub is_message: bool,
    /// The declared default.
    pub default: Option<Arc<Value>>,
    /// Rules for the value. Those of built-in types are documentation: their kinds have validation of their own.
    pub validations: Option<Arc<Validations>>,
    /// Go's name of a scalar, list or map type with a name of its own: `core/v1.Protocol`, `core/v1.ResourceList`.
    pub go_type: Option<Arc<str>>,
    /// The title in a CustomResourceDefinition.
    pub title: Option<Arc<str>>,
    /// The description in a CustomResourceDefinition; the tables of built-in types have none.
    pub description: Option<Arc<str>>,
}

/// The type of a value.
#[derive(Debug, Clone, Default)]
pub enum Kind {
    /// Anything, or nothing is known. Without [`Schema::preserve_unknown_fields`] no field of an object inside is known.
    #[default]
    Any,
    /// Any JSON; `apiextensions/v1.JSON` on the wire, a message with `bytes raw = 1`.
    Json,
    /// Any object; `runtime.RawExtension` on the wire, a message with `bytes raw = 1`.
    RawExtension,
    /// A field set of `managedFields`; `meta/v1.FieldsV1` on the wire, a message with `bytes Raw = 1`.
    FieldsV1,
    /// `true` or `false`.
    Bool,
    /// A whole number of 32 or 64 bits.
    Integer(u8),
    /// A number; `float64` in Go, `double` on the wire.
    Number,
    /// Text.
    String,
    /// Base64 in JSON, bytes on the wire.
    Bytes,
    /// `api/resource.Quantity`: a message with `string string = 1` on the wire.
    Quantity,
    /// A number or a text; `intstr.IntOrString` on the wire: `int64 type = 1; int32 intVal = 2; string strVal = 3`.
    IntOrString,
    /// RFC 3339 in seconds; on the wire a message with `int64 seconds = 1; int32 nanos = 2`.
    Time,
    /// RFC 3339 in microseconds; on the wire as [`Kind::Time`].
    MicroTime,
    /// Go's form of a duration, such as `1m30s`; on the wire a message with `int64 duration = 1` in nanoseconds.
    Duration,
    /// A list of values of one type.
    List(Arc<Schema>),
    /// An object with any keys and values of one type.
    Map(Arc<Schema>),
    /// An object with named fields.
    Object(Arc<Object>),
    /// A named type, which may contain itself.
    Named(Arc<NamedType>),
    /// One of several forms, distinguished by their JSON type; see [`Schema::alternative`]. The properties are the
    /// members of the message on the wire, not fields of an object: `apiextensions/v1.JSONSchemaPropsOrBool` and its
    /// like.
    Union(Arc<Object>),
}

/// An object type with named fields.
#[derive(Debug, Clone, Default)]
pub struct Object {
    /// All fields in JSON, also those of inlined types.
    pub properties: Properties,
    /// What fields of other names hold: `additionalProperties: true` next to properties in a CustomResourceDefinition.
    pub additional: Option<Arc<Schema>>,
    /// The structs that Go inlines: their fields are among the properties, in protobuf they are messages of their own.
    pub inline: Vec<Inline>,
    /// What is on the wire, for [`crate::protobuf`]; made from the other two when it is first needed.
    pub wire_order: WireOrder,
}

/// A field of an object.
#[derive(Debug, Clone, Default)]
pub struct Property {
    /// What the field holds.
    pub schema: Schema,
    /// What an absent field and an empty value mean.
    pub presence: Presence,
    /// Whether the schema lists the field as required. Go's types are documented so, without being checked for it.
    pub required: bool,
    /// The number in protobuf. `None` for a field that is not on the wire: of `TypeMeta`, of a type without protobuf,
    /// of a custom resource; and for the members of an inlined type, which carries the number itself.
    pub number: Option<u32>,
    /// Whether the field is one of an [`Object::inline`] type.
    pub inlined: bool,
}

/// A struct that Go inlines into another. `TypeMeta` has no number: it is on the wire of the envelope alone.
#[derive(Debug, Clone)]
pub struct Inline {
    /// The number of the message in protobuf.
    pub number: Option<u32>,
    /// The inlined type.
    pub of: Arc<NamedType>,
}

/// How upstream's type holds and writes a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// No pointer, and left out when it is empty: absent and the zero value are the same.
    Value,
    /// No pointer, and written even if it is empty: absent and the zero value are the same.
    Always,
    /// A pointer: absent differs from the zero value. So are all fields of custom resources.
    #[default]
    Pointer,
}

/// A declared list type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as one whole.
    Atomic,
    /// Scalars, each at most once.
    Set,
    /// Objects, each with values of these keys of its own.
    Map(Arc<[Arc<str>]>),
}

/// A declared map type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapType {
    /// Replaced as one whole.
    Atomic,
    /// Merged field by field.
    Granular,
}

/// What a strategic merge patch does to a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    /// `merge`: items of a list are merged by the merge key, or as a set of scalars.
    pub merge: bool,
    /// `retainKeys`: fields of the object or of an item are dropped unless `$retainKeys` names them.
    pub retain_keys: bool,
    /// `replace`: an object is replaced as one whole.
    pub replace: bool,
}

/// A type with a name; recursive types refer to themselves through it.
pub struct NamedType {
    name: Arc<str>,
    /// Set once, by the index that makes the type.
    definition: OnceLock<Schema>,
}

impl NamedType {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, definition: OnceLock::new() }
    }

    pub(super) fn define(&self, definition: Schema) {
        // A type that two threads load at once has one definition: both read the same table.
        let _ = self.definition.set(definition);
    }

    /// The name, as `core/v1.PodSpec`: package and Go type.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last part of the name: `PodSpec`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// The type's own node; never [`Kind::Named`] itself.
    #[must_use]
    pub fn definition(&self) -> &Schema {
        self.definition.get().unwrap_or(&UNKNOWN)
    }
}

/// The placeholder of a type without definition; an index returns none of these.
static UNKNOWN: Schema = Schema::any();

/// A type may contain itself: its definition is not printed.
impl fmt::Debug for NamedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamedType").field(&self.name).finish()
    }
}

/// Value validations, as OpenAPI has them; empty in most nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Validations {
    /// The allowed values.
    pub enumeration: Vec<Value>,
    /// The format of a text or number, such as `date-time` or `int32`.
    pub format: Option<Arc<str>>,
    /// A regular expression (RE2) that a text must match somewhere.
    pub pattern: Option<Pattern>,
    /// The least number.
    pub minimum: Option<f64>,
    /// Whether the number must be above [`Validations::minimum`].
    pub exclusive_minimum: bool,
    /// The largest number.
    pub maximum: Option<f64>,
    /// Whether the number must be below [`Validations::maximum`].
    pub exclusive_maximum: bool,
    /// What a number must be a multiple of.
    pub multiple_of: Option<f64>,
    /// The least length of a text, in characters.
    pub min_length: Option<u64>,
    /// The greatest length of a text, in characters.
    pub max_length: Option<u64>,
    /// The least number of items of a list.
    pub min_items: Option<u64>,
    /// The greatest number of items of a list.
    pub max_items: Option<u64>,
    /// The least number of fields.
    pub min_properties: Option<u64>,
    /// The greatest number of fields.
    pub max_properties: Option<u64>,
    /// Names of required fields, also of those that no property declares. See [`Property::required`].
    pub required: Vec<Arc<str>>,
    /// Alternatives and negations.
    pub junctors: Option<Box<Junctors>>,
    /// CEL rules as text (`x-kubernetes-validations`).
    pub rules: Vec<ValidationRule>,
    /// Validations of fields inside; only in members of junctors, and for `metadata` of a custom resource.
    pub properties: BTreeMap<Arc<str>, Validations>,
    /// Validations of the items inside; only in members of junctors.
    pub items: Option<Box<Validations>>,
    /// Validations of a map's values inside; only in members of junctors.
    pub additional_properties: Option<Box<Validations>>,
}

/// What joins several validations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Junctors {
    /// All must hold.
    pub all_of: Vec<Validations>,
    /// At least one must hold.
    pub any_of: Vec<Validations>,
    /// Whether `anyOf` says in its two literal forms that the value is an integer or a text.
    pub integer_or_text: bool,
    /// Exactly one must hold.
    pub one_of: Vec<Validations>,
    /// Must not hold.
    pub not: Option<Validations>,
}

/// A CEL rule, as a CustomResourceDefinition writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidationRule {
    /// The expression.
    pub rule: Arc<str>,
    /// The message when it is false.
    pub message: Option<Arc<str>>,
    /// An expression that makes the message.
    pub message_expression: Option<Arc<str>>,
    /// The reason of the error, such as `FieldValueInvalid`.
    pub reason: Option<Arc<str>>,
    /// The field that the error names, below the rule's own.
    pub field_path: Option<Arc<str>>,
    /// Whether the rule runs without an old value too.
    pub optional_old_self: Option<bool>,
}

impl Schema {
    /// A node of which nothing but the type is known.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            list_type: None,
            map_type: None,
            patch_strategy: PatchStrategy { merge: false, retain_keys: false, replace: false },
            merge_key: None,
            untyped: false,
            nullable: false,
            preserve_unknown_fields: false,
            embedded_resource: false,
            is_message: false,
            default: None,
            validations: None,
            go_type: None,
            title: None,
            description: None,
        }
    }

    /// A node that takes anything and keeps it.
    #[must_use]
    pub const fn any() -> Self {
        let mut any = Self::new(Kind::Any);
        any.preserve_unknown_fields = true;
        any
    }

    /// The node of a named type's use.
    #[must_use]
    pub fn named(of: Arc<NamedType>) -> Self {
        Self::new(Kind::Named(of))
    }

    /// The node that says what is inside: the definition of a named type, otherwise the node itself.
    #[must_use]
    pub fn resolved(&self) -> &Self {
        match &self.kind {
            Kind::Named(of) => of.definition(),
            _ => self,
        }
    }

    /// The object type, of this node or of the type that it names.
    #[must_use]
    pub fn object(&self) -> Option<&Object> {
        match &self.resolved().kind {
            Kind::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The fields of this node, if it is an object type itself.
    #[must_use]
    pub fn as_object(&self) -> Option<&Object> {
        match &self.kind {
            Kind::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The named field of an object type.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.object()?.properties.get(name)
    }

    /// What a field of this name holds: of an object its property, or what others hold; of a map its values.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Self> {
        match &self.resolved().kind {
            Kind::Object(object) => match object.properties.get(name) {
                Some(property) => Some(&property.schema),
                None => object.additional.as_deref(),
            },
            Kind::Map(values) => Some(values),
            _ => None,
        }
    }

    /// What the items of a list are.
    #[must_use]
    pub fn items(&self) -> Option<&Self> {
        match &self.resolved().kind {
            Kind::List(items) => Some(items),
            _ => None,
        }
    }

    /// The name of the type: of a named type, or Go's name of a scalar, list or map.
    #[must_use]
    pub fn type_name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Named(of) => Some(of.name()),
            _ => self.go_type.as_deref(),
        }
    }

    /// Whether server-side apply takes the value as one whole: a scalar, a list that is neither set nor map, an object or
    /// map that is declared atomic at this use or else in its type.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        let definition = self.resolved();
        match &definition.kind {
            Kind::Object(_) | Kind::Map(_) => self.map_type.or(definition.map_type) == Some(MapType::Atomic),
            Kind::List(_) => matches!(self.list_type, None | Some(ListType::Atomic)),
            // Without a type, a map is granular by deduction, unless it is declared atomic.
            Kind::Any => self.map_type == Some(MapType::Atomic),
            _ => true,
        }
    }

    /// The keys of a list of type `map`; empty for any other.
    #[must_use]
    pub fn list_map_keys(&self) -> &[Arc<str>] {
        match &self.list_type {
            Some(ListType::Map(keys)) => keys,
            _ => &[],
        }
    }

    /// Of a union, the form that has the JSON type of `value`: objects a named type, lists a list, and so on.
    #[must_use]
    pub fn alternative(&self, value: &Value) -> Option<&Self> {
        let Kind::Union(forms) = &self.resolved().kind else { return None };
        let has_form = |schema: &Self| {
            matches!(
                (&schema.resolved().kind, value),
                (Kind::List(_), Value::Array(_))
                    | (Kind::Bool, Value::Bool(_))
                    | (Kind::Object(_) | Kind::Map(_), Value::Object(_))
            )
        };
        forms.properties.values().map(|form| &form.schema).find(|schema| has_form(schema))
    }
}

/// A name in Go's error messages: `string`, `int32`, `[]v1.Container`, `map[string]resource.Quantity`.
impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without_path = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        if let Some(name) = &self.go_type {
            return f.write_str(&without_path(name));
        }
        match &self.kind {
            Kind::Any | Kind::Json => f.write_str("interface {}"),
            Kind::RawExtension => f.write_str("runtime.RawExtension"),
            Kind::FieldsV1 => f.write_str("v1.FieldsV1"),
            Kind::Bool => f.write_str("bool"),
            Kind::Integer(bits) => write!(f, "int{bits}"),
            Kind::Number => f.write_str("float64"),
            Kind::String => f.write_str("string"),
            Kind::Bytes => f.write_str("[]uint8"),
            Kind::Quantity => f.write_str("resource.Quantity"),
            Kind::IntOrString => f.write_str("intstr.IntOrString"),
            Kind::Time => f.write_str("v1.Time"),
            Kind::MicroTime => f.write_str("v1.MicroTime"),
            Kind::Duration => f.write_str("v1.Duration"),
            Kind::List(items) => write!(f, "[]{items}"),
            Kind::Map(values) => write!(f, "map[string]{values}"),
            Kind::Object(_) | Kind::Union(_) => f.write_str("object"),
            Kind::Named(of) => f.write_str(&without_path(of.name())),
        }
    }
}
