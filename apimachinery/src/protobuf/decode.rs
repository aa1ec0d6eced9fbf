//! Reads protobuf messages as the JSON that Go writes for the same object.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    Error, Problem, scalars,
    wire::{Payload, Reader},
};
use crate::{
    MAX_DEPTH,
    schema::{Kind, Member, Object, Presence, Property, Schema},
};

/// Reads the message of an object, without `apiVersion` and `kind`. Fields that the schema does not name are skipped, as Go
/// does; the last of several values of a field holds, and messages of one field are merged.
///
/// # Errors
/// When the bytes are no message of the type, or need more than their share of memory or stack.
pub fn decode(schema: &Schema, bytes: &[u8]) -> Result<Value, Error> {
    decode_root(schema, bytes, true)
}

/// As [`decode`], without the zero values that Go writes of fields that are no pointers: what is left is what the sender
/// set, as in a manifest.
///
/// # Errors
/// As [`decode`].
pub fn decode_compact(schema: &Schema, bytes: &[u8]) -> Result<Value, Error> {
    decode_root(schema, bytes, false)
}

fn decode_root(schema: &Schema, bytes: &[u8], writes_zeros: bool) -> Result<Value, Error> {
    let object = schema.object().filter(|object| !object.by_number().is_empty());
    let object = object.ok_or_else(|| Problem::NotOnWire(schema.to_string()))?;
    let mut decoder = Decoder { values: 0, writes_zeros };
    Ok(Value::Object(decoder.message(object, bytes, 1)?))
}

/// How many values one message may become. Two bytes are enough for an object with all its empty fields, so that without
/// a bound a body of three megabytes becomes gigabytes.
const MAX_VALUES: usize = 1 << 20;

struct Decoder {
    /// How many values were made so far.
    values: usize,
    /// Whether zero values of fields that are no pointers are kept.
    writes_zeros: bool,
}

/// A message that is read when all of its parts are known: they may be apart in the bytes.
struct Pending<'a> {
    member: &'a Member,
    parts: Vec<&'a [u8]>,
}

impl Decoder {
    fn count(&mut self, values: usize) -> Result<(), Problem> {
        self.values += values;
        if self.values > MAX_VALUES { Err(Problem::TooManyValues) } else { Ok(()) }
    }

    fn message(&mut self, object: &Object, bytes: &[u8], depth: usize) -> Result<Map<String, Value>, Error> {
        if depth > MAX_DEPTH {
            return Err(Problem::TooDeep.into());
        }
        let members = object.by_number();
        let mut out = Map::new();
        let mut pending: Vec<Pending<'_>> = Vec::new();
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            let Ok(place) = members.binary_search_by_key(&number, |(number, _)| *number) else { continue };
            let member = &members[place].1;
            if let Some(part) = part_of_message(object, member, payload)? {
                match pending.iter_mut().find(|known| known.member == member) {
                    Some(known) => known.parts.push(part),
                    None => pending.push(Pending { member, parts: vec![part] }),
                }
                continue;
            }
            let Some((name, property)) = property(object, member) else { continue };
            self.field(&mut out, name, property, payload, depth).map_err(|error| error.inside(name))?;
        }
        for Pending { member, parts } in pending {
            let joined;
            let bytes = if let [part] = parts[..] {
                part
            } else {
                joined = parts.concat();
                &joined
            };
            match member {
                Member::Inline(place) => {
                    if let Some(inner) = object.inline[*place].of.definition().as_object() {
                        out.append(&mut self.message(inner, bytes, depth)?);
                    }
                }
                Member::Property(name) => {
                    let Some(inner) = object.properties.get(name).and_then(|field| field.schema.object()) else {
                        continue;
                    };
                    let inner = self.message(inner, bytes, depth + 1).map_err(|error| error.inside(name))?;
                    out.insert((**name).to_owned(), Value::Object(inner));
                }
            }
        }
        self.complete(object, &mut out, depth)?;
        Ok(out)
    }

    /// Adds what Go writes although it is empty, and drops what it leaves out.
    fn complete(&mut self, object: &Object, out: &mut Map<String, Value>, depth: usize) -> Result<(), Error> {
        for (_, member) in object.by_number() {
            match member {
                Member::Inline(place) => {
                    if let Some(inner) = object.inline[*place].of.definition().as_object() {
                        self.complete(inner, out, depth)?;
                    }
                }
                Member::Property(name) => {
                    let Some(property) = object.properties.get(name) else { continue };
                    let drops = match property.presence {
                        Presence::Pointer => false,
                        Presence::Value => true,
                        Presence::Always => !self.writes_zeros,
                    };
                    if drops && out.get(&**name).is_some_and(|value| is_empty(&property.schema, value)) {
                        out.remove(&**name);
                    } else if property.presence == Presence::Always && !drops && !out.contains_key(&**name) {
                        let zero = self.zero(&property.schema, depth)?;
                        out.insert((**name).to_owned(), zero);
                    }
                }
            }
        }
        Ok(())
    }

    /// What Go writes for the zero value of a type.
    fn zero(&mut self, schema: &Schema, depth: usize) -> Result<Value, Error> {
        self.count(1)?;
        Ok(match &schema.resolved().kind {
            Kind::Bool => false.into(),
            Kind::Integer(_) | Kind::Number | Kind::IntOrString => 0.into(),
            Kind::String => "".into(),
            Kind::Quantity => "0".into(),
            Kind::Duration => "0s".into(),
            Kind::Object(object) => Value::Object(self.message(object, &[], depth + 1)?),
            _ => Value::Null,
        })
    }

    /// A field that is no message of named fields: a scalar, an item of a list, an entry of a map.
    fn field(
        &mut self,
        out: &mut Map<String, Value>,
        name: &str,
        property: &Property,
        payload: Payload<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        let schema = &property.schema;
        match &schema.resolved().kind {
            Kind::List(items) if !schema.is_message => {
                let list = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = list else { return Ok(()) };
                self.items(list, items, payload, depth + 1)
            }
            Kind::Map(values) => {
                let (key, value) = self.entry(values, payload, depth + 1)?;
                let map = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
                Ok(())
            }
            _ => {
                let value = self.value(schema, payload, depth)?;
                out.insert(name.to_owned(), value);
                Ok(())
            }
        }
    }

    /// The items of a list in one field: one, or all of several numbers that are packed.
    fn items(
        &mut self,
        list: &mut Vec<Value>,
        items: &Schema,
        payload: Payload<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        if let (Kind::Bool | Kind::Integer(_) | Kind::Number, Payload::Bytes(packed)) = (&items.kind, payload) {
            let mut reader = Reader::new(packed);
            while !reader.is_empty() {
                let payload = match items.kind {
                    Kind::Number => Payload::Fixed64(u64::from_le_bytes(reader.array()?)),
                    _ => Payload::Varint(reader.varint()?),
                };
                list.push(self.value(items, payload, depth)?);
            }
            return Ok(());
        }
        let place = list.len();
        let item = self.value(items, payload, depth).map_err(|error| error.inside(&format!("[{place}]")))?;
        list.push(item);
        Ok(())
    }

    /// An entry of a map: a message of key and value, each of which may be missing.
    fn entry(&mut self, values: &Schema, payload: Payload<'_>, depth: usize) -> Result<(String, Value), Error> {
        let mut key = String::new();
        let mut value = None;
        let mut reader = Reader::new(bytes_of(values, payload)?);
        while let Some((number, payload)) = reader.next()? {
            match number {
                1 => key = text(bytes_of(values, payload)?)?.to_owned(),
                2 => value = Some(self.value(values, payload, depth).map_err(|error| error.inside(&key))?),
                _ => {}
            }
        }
        let value = match (value, &values.resolved().kind) {
            (Some(value), _) => value,
            // Go makes an empty value of a missing one.
            (None, Kind::Bytes) => "".into(),
            (None, _) => self.zero(values, depth)?,
        };
        Ok((key, value))
    }

    /// One value.
    fn value(&mut self, schema: &Schema, payload: Payload<'_>, depth: usize) -> Result<Value, Error> {
        self.count(1)?;
        let kind = &schema.resolved().kind;
        Ok(match (kind, payload) {
            (Kind::Bool, Payload::Varint(number)) => (number != 0).into(),
            (Kind::Integer(bits), Payload::Varint(number)) => integer(number, *bits).into(),
            (Kind::Number, Payload::Fixed64(bits)) => scalars::json_number(f64::from_bits(bits)),
            (Kind::String, payload) => text(bytes_of(schema, payload)?)?.into(),
            (Kind::Bytes, payload) => STANDARD.encode(bytes_of(schema, payload)?).into(),
            (Kind::List(items), payload) => {
                let mut list = Vec::new();
                let mut reader = Reader::new(bytes_of(schema, payload)?);
                while let Some((number, payload)) = reader.next()? {
                    if number == 1 {
                        self.items(&mut list, items, payload, depth + 1)?;
                    }
                }
                Value::Array(list)
            }
            (Kind::Object(object), payload) => {
                Value::Object(self.message(object, bytes_of(schema, payload)?, depth + 1)?)
            }
            (Kind::Union(forms), payload) => self.form(forms, bytes_of(schema, payload)?, depth)?,
            (Kind::Time, payload) => scalars::read_time(bytes_of(schema, payload)?, false)?,
            (Kind::MicroTime, payload) => scalars::read_time(bytes_of(schema, payload)?, true)?,
            (Kind::IntOrString, payload) => int_or_string(bytes_of(schema, payload)?)?,
            (Kind::Quantity, payload) => match text(member(bytes_of(schema, payload)?, 1)?)? {
                "" => "0".into(),
                text => text.into(),
            },
            (Kind::Duration, payload) => {
                let mut duration = 0;
                let mut reader = Reader::new(bytes_of(schema, payload)?);
                while let Some((number, payload)) = reader.next()? {
                    if let (1, Payload::Varint(number)) = (number, payload) {
                        duration = number.cast_signed();
                    }
                }
                crate::duration::format(duration).into()
            }
            (Kind::FieldsV1 | Kind::RawExtension | Kind::Json, payload) => {
                self.raw(member(bytes_of(schema, payload)?, 1)?, depth)?
            }
            _ => return Err(wrong_wire_type(schema, payload)),
        })
    }

    /// JSON inside a message; nothing is `null`.
    fn raw(&mut self, json: &[u8], depth: usize) -> Result<Value, Error> {
        if json.is_empty() {
            return Ok(Value::Null);
        }
        let value = serde_json::from_slice(json).map_err(|_| Problem::Json)?;
        self.weigh(&value, depth)?;
        Ok(value)
    }

    /// Counts the values inside one, and how deep they are nested.
    fn weigh(&mut self, value: &Value, depth: usize) -> Result<(), Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::TooDeep);
        }
        self.count(1)?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.weigh(item, depth + 1)),
            Value::Object(fields) => fields.values().try_for_each(|field| self.weigh(field, depth + 1)),
            _ => Ok(()),
        }
    }

    /// One of several forms: the one that is set, the boolean last.
    fn form(&mut self, forms: &Object, bytes: &[u8], depth: usize) -> Result<Value, Error> {
        let mut found = self.message(forms, bytes, depth)?;
        let mut truth = None;
        for (_, member) in forms.by_number() {
            let Some((name, property)) = property(forms, member) else { continue };
            let is_bool = matches!(property.schema.kind, Kind::Bool);
            match found.remove(name) {
                None if is_bool => truth = Some(false),
                Some(Value::Bool(value)) if is_bool => truth = Some(value),
                Some(value) => return Ok(value),
                None => {}
            }
        }
        Ok(truth.map_or(Value::Null, Value::Bool))
    }
}

/// The bytes of a message of named fields that is no item of a list: its parts are read together.
fn part_of_message<'a>(object: &Object, member: &Member, payload: Payload<'a>) -> Result<Option<&'a [u8]>, Error> {
    match member {
        Member::Inline(place) => {
            let name = object.inline[*place].of.short_name();
            bytes_of(object.inline[*place].of.definition(), payload).map(Some).map_err(|error| error.inside(name))
        }
        Member::Property(name) => match object.properties.get(name).map(|property| &property.schema) {
            Some(schema) if schema.object().is_some() => {
                bytes_of(schema, payload).map(Some).map_err(|error| error.inside(name))
            }
            _ => Ok(None),
        },
    }
}

fn property<'a>(object: &'a Object, member: &'a Member) -> Option<(&'a str, &'a Property)> {
    let Member::Property(name) = member else { return None };
    object.properties.get(name).map(|property| (&**name, property))
}

fn bytes_of<'a>(schema: &Schema, payload: Payload<'a>) -> Result<&'a [u8], Error> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        _ => Err(wrong_wire_type(schema, payload)),
    }
}

fn wrong_wire_type(schema: &Schema, payload: Payload<'_>) -> Error {
    Problem::WireType { expected: schema.to_string(), found: payload.wire_type() as u8 }.into()
}

fn text(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| Problem::Utf8)
}

/// The bytes of one member of a message; the last holds.
fn member(message: &[u8], wanted: u32) -> Result<&[u8], Problem> {
    let mut found: &[u8] = &[];
    let mut reader = Reader::new(message);
    while let Some((number, payload)) = reader.next()? {
        if let (true, Payload::Bytes(bytes)) = (number == wanted, payload) {
            found = bytes;
        }
    }
    Ok(found)
}

/// A number of the type's width: as in Go, higher bits are lost.
fn integer(number: u64, bits: u8) -> i64 {
    if bits > 32 {
        return number.cast_signed();
    }
    let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
    low.cast_signed().into()
}

fn int_or_string(message: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut whole, mut words) = (false, 0, "");
    let mut reader = Reader::new(message);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Varint(kind)) => is_text = kind == 1,
            (2, Payload::Varint(number)) => whole = integer(number, 32),
            (3, Payload::Bytes(bytes)) => words = text(bytes)?,
            (1..=3, payload) => {
                let found = payload.wire_type() as u8;
                return Err(Problem::WireType { expected: "intstr.IntOrString".to_owned(), found }.into());
            }
            _ => {}
        }
    }
    Ok(if is_text { words.into() } else { whole.into() })
}

/// What Go leaves out where a field says `omitempty`.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match value {
        // Any JSON is something.
        _ if matches!(schema.kind, Kind::Json | Kind::RawExtension | Kind::FieldsV1) => value.is_null(),
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
