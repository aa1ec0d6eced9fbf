//! Reads the tables of built-in types.
//!
//! A table is the text of one package, `core/v1` for example. A line that begins with a name begins a type; the lines that
//! begin with a tab are its fields. Columns are separated by tabs (→):
//!
//! ```text
//! Container
//! → name → string → 1 → always → required
//! → ports → list<ContainerPort> → 6 → patch=merge:containerPort → list=map:containerPort,protocol
//! ```
//!
//! | column | is |
//! |---|---|
//! | name | the field in JSON; `*` for a struct that Go inlines |
//! | type | `string` `bool` `int32` `int64` `float64` `bytes` `quantity` `intOrString` `time` `microTime` `duration` `json` `rawExtension` `fieldsV1`, `list<…>`, `map<…>`, or a type: of the same package by its name, of another as `meta/v1.ObjectMeta` |
//! | number | in protobuf; empty for a field that is not on the wire |
//! | attributes | any of those below |
//!
//! | attribute | says |
//! |---|---|
//! | `pointer` | absent differs from the zero value |
//! | `always` | written although it is empty; fields without `pointer` and `always` are left out when they are empty |
//! | `required` | listed as required in OpenAPI |
//! | `type=`, `item=` | Go's name of the field's type, of the type of its items |
//! | `message` | a list of strings, or the lists in a map, are messages of their own in protobuf |
//! | `patch=` | patch strategy and, after a colon, the merge key |
//! | `list=` | list type and, after a colon, the keys; lists without it are atomic, `unset` is for those that say nothing |
//! | `map=` | map type of this field |
//! | `default=`, `enum=` | the declared default as JSON, the allowed values |
//!
//! A type's own attributes are `atomic` and `granular`, its map type, and `union` for one that is several forms in JSON.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

use super::node::{
    Inline, Kind, ListType, MapType, NamedType, Object, PatchStrategy, Presence, Property, Schema, Validations,
};

/// Why a type cannot be read from the tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// No table has the type.
    #[error("no table describes the type {0:?}")]
    Unknown(String),
    /// A line cannot be understood.
    #[error("line {line:?} of the type {of:?} cannot be read: {reason}")]
    Malformed {
        /// The type.
        of: String,
        /// The line.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// All types of some tables, each made when it is first asked for, with all that it contains.
#[derive(Debug)]
pub struct TypeIndex {
    /// The lines of each type, by its name.
    lines: HashMap<String, &'static str>,
    /// Types made so far.
    types: Mutex<HashMap<String, Arc<NamedType>>>,
}

impl TypeIndex {
    /// The types of `tables`: each a package such as `core/v1`, and its text.
    #[must_use]
    pub fn new(tables: &[(&str, &'static str)]) -> Self {
        let mut lines = HashMap::new();
        for (package, text) in tables {
            let mut rest = *text;
            while !rest.is_empty() {
                let end = rest.match_indices('\n').map(|(at, _)| at + 1).find(|at| !rest[*at..].starts_with('\t'));
                let (of, after) = rest.split_at(end.unwrap_or(rest.len()));
                let name = of.split(['\t', '\n']).next().unwrap_or_default();
                if !name.is_empty() && !name.starts_with('#') {
                    lines.insert(format!("{package}.{name}"), of);
                }
                rest = after;
            }
        }
        Self { lines, types: Mutex::default() }
    }

    /// The node of a type such as `core/v1.Pod`. All uses of one type share its definition.
    ///
    /// # Errors
    /// When the type, or one inside it, is in no table or is malformed there.
    pub fn get(&self, name: &str) -> Result<Arc<Schema>, TableError> {
        self.named(name).map(|of| Arc::new(Schema::named(of)))
    }

    /// The named type itself.
    ///
    /// # Errors
    /// As [`TypeIndex::get`].
    pub fn named(&self, name: &str) -> Result<Arc<NamedType>, TableError> {
        let mut types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = types.get(name) {
            return Ok(Arc::clone(known));
        }
        // What is met on the way is published only if all of it can be read.
        let mut load = Load { index: self, known: &types, made: HashMap::new(), waiting: Vec::new() };
        let root = load.reference(name)?;
        while let Some(next) = load.waiting.pop() {
            let definition = load.definition(next.name())?;
            next.define(definition);
        }
        let made = load.made;
        types.extend(made);
        Ok(root)
    }

    /// The names of all types, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.keys().map(String::as_str)
    }
}

/// One type that is being read with all that it contains.
struct Load<'a> {
    index: &'a TypeIndex,
    known: &'a HashMap<String, Arc<NamedType>>,
    made: HashMap<String, Arc<NamedType>>,
    /// Types that are referred to and not yet defined.
    waiting: Vec<Arc<NamedType>>,
}

impl Load<'_> {
    fn reference(&mut self, name: &str) -> Result<Arc<NamedType>, TableError> {
        if let Some(known) = self.known.get(name).or_else(|| self.made.get(name)) {
            return Ok(Arc::clone(known));
        }
        if !self.index.lines.contains_key(name) {
            return Err(TableError::Unknown(name.to_owned()));
        }
        let of = Arc::new(NamedType::new(name.into()));
        self.made.insert(name.to_owned(), Arc::clone(&of));
        self.waiting.push(Arc::clone(&of));
        Ok(of)
    }

    fn definition(&mut self, name: &str) -> Result<Schema, TableError> {
        let mut lines = self.index.lines.get(name).copied().unwrap_or_default().lines();
        let header = lines.next().unwrap_or_default();
        let mut object = Object::default();
        for line in lines {
            self.field(name, line, &mut object).map_err(|error| match error {
                Failed::Table(error) => error,
                Failed::Line(reason) => TableError::Malformed { of: name.to_owned(), line: line.to_owned(), reason },
            })?;
        }
        let is = |word: &str| header.split('\t').skip(1).any(|attribute| attribute == word);
        let object = Arc::new(object);
        let mut schema = Schema::new(if is("union") { Kind::Union(object) } else { Kind::Object(object) });
        schema.map_type = map_type(is("atomic"), is("granular"));
        Ok(schema)
    }

    fn field(&mut self, of: &str, line: &str, object: &mut Object) -> Result<(), Failed> {
        let package = of.rsplit_once('.').map_or("", |(package, _)| package);
        let mut columns = line.trim_start_matches('\t').split('\t');
        let (Some(name), Some(of)) = (columns.next(), columns.next()) else {
            return Err(Failed::Line("a field has a name and a type".to_owned()));
        };
        let number = match columns.next().unwrap_or_default() {
            "" => None,
            text => Some(text.parse().map_err(|_| Failed::Line(format!("{text:?} is no number")))?),
        };
        if name == "*" {
            return self.inline(&qualified(of, package), number, object);
        }
        let mut property = Property { schema: self.of_text(of, package)?, number, ..Property::default() };
        property.presence = Presence::Value;
        if matches!(property.schema.kind, Kind::List(_)) {
            property.schema.list_type = Some(ListType::Atomic);
        }
        for attribute in columns {
            set_attribute(&mut property, attribute, package).map_err(Failed::Line)?;
        }
        object.properties.insert(name.into(), property);
        Ok(())
    }

    /// The fields of an inlined struct are read here a second time: it may not be defined yet.
    fn inline(&mut self, name: &str, number: Option<u32>, object: &mut Object) -> Result<(), Failed> {
        let of = self.reference(name)?;
        let definition = self.definition(name)?;
        if let Kind::Object(inner) = definition.kind {
            for (key, property) in &inner.properties {
                let property = Property { inlined: true, number: None, ..property.clone() };
                object.properties.insert(Arc::clone(key), property);
            }
        }
        object.inline.push(Inline { number, of });
        Ok(())
    }

    fn of_text(&mut self, text: &str, package: &str) -> Result<Schema, Failed> {
        let inside = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
        if let Some(items) = inside("list<") {
            return Ok(Schema::new(Kind::List(Arc::new(self.of_text(items, package)?))));
        }
        if let Some(values) = inside("map<") {
            return Ok(Schema::new(Kind::Map(Arc::new(self.of_text(values, package)?))));
        }
        let kind = match text {
            "string" => Kind::String,
            "bool" => Kind::Bool,
            "int32" => Kind::Integer(32),
            "int64" => Kind::Integer(64),
            "float64" => Kind::Number,
            "bytes" => Kind::Bytes,
            "quantity" => Kind::Quantity,
            "intOrString" => Kind::IntOrString,
            "time" => Kind::Time,
            "microTime" => Kind::MicroTime,
            "duration" => Kind::Duration,
            "json" => Kind::Json,
            "rawExtension" => Kind::RawExtension,
            "fieldsV1" => Kind::FieldsV1,
            name => Kind::Named(self.reference(&qualified(name, package))?),
        };
        let mut schema = Schema::new(kind);
        schema.preserve_unknown_fields = matches!(schema.kind, Kind::Json | Kind::RawExtension | Kind::FieldsV1);
        Ok(schema)
    }
}

/// Why a field cannot be read.
enum Failed {
    Table(TableError),
    Line(String),
}

impl From<TableError> for Failed {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

/// The whole name of a type that a table of `package` names.
fn qualified(name: &str, package: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{package}.{name}") }
}

fn map_type(atomic: bool, granular: bool) -> Option<MapType> {
    if atomic { Some(MapType::Atomic) } else { granular.then_some(MapType::Granular) }
}

/// What is inside a list or map, which is not yet shared.
fn inner(schema: &mut Schema) -> Option<&mut Schema> {
    match &mut schema.kind {
        Kind::List(inner) | Kind::Map(inner) => Arc::get_mut(inner),
        _ => None,
    }
}

fn set_attribute(property: &mut Property, attribute: &str, package: &str) -> Result<(), String> {
    let schema = &mut property.schema;
    let (word, value) = attribute.split_once('=').unwrap_or((attribute, ""));
    match word {
        "pointer" => property.presence = Presence::Pointer,
        // Of a pointer this says that `null` is written for nothing.
        "always" if property.presence != Presence::Pointer => property.presence = Presence::Always,
        "always" => {}
        "required" => property.required = true,
        "type" => schema.go_type = Some(qualified(value, package).into()),
        "item" => {
            let item = inner(schema).ok_or("only a list or map has items")?;
            item.go_type = Some(qualified(value, package).into());
        }
        "message" => match schema.kind {
            Kind::Map(_) => inner(schema).ok_or("only a list can be a message")?.is_message = true,
            _ => schema.is_message = true,
        },
        "patch" => {
            let (strategies, key) = value.split_once(':').map_or((value, None), |(words, key)| (words, Some(key)));
            schema.patch_strategy = patch_strategy(strategies)?;
            schema.merge_key = key.map(Into::into);
        }
        "list" => schema.list_type = list_type(value)?,
        "map" => schema.map_type = map_type(value == "atomic", value == "granular"),
        "default" => {
            let value: Value = serde_json::from_str(value).map_err(|e| format!("{value:?} is no JSON: {e}"))?;
            schema.default = Some(Arc::new(value));
        }
        "enum" => {
            let word = |word: &str| Value::from(if word == "\"\"" { "" } else { word });
            let enumeration = value.split(',').map(word).collect();
            let validations = Validations { enumeration, ..Validations::default() };
            let holder = if matches!(schema.kind, Kind::List(_)) { inner(schema) } else { Some(schema) };
            holder.ok_or("the items are shared")?.validations = Some(Arc::new(validations));
        }
        _ => return Err(format!("{word:?} is no attribute")),
    }
    Ok(())
}

fn patch_strategy(words: &str) -> Result<PatchStrategy, String> {
    let mut strategy = PatchStrategy::default();
    for word in words.split(',') {
        match word {
            "merge" => strategy.merge = true,
            "retainKeys" => strategy.retain_keys = true,
            "replace" => strategy.replace = true,
            _ => return Err(format!("{word:?} is no patch strategy")),
        }
    }
    Ok(strategy)
}

fn list_type(text: &str) -> Result<Option<ListType>, String> {
    Ok(match text.split_once(':') {
        Some(("map", keys)) => Some(ListType::Map(keys.split(',').map(Arc::from).collect())),
        None if text == "set" => Some(ListType::Set),
        None if text == "atomic" => Some(ListType::Atomic),
        None if text == "unset" => None,
        _ => return Err(format!("{text:?} is no list type")),
    })
}
