//! Fields of messages: how each type of value is written and read, as proto3 has it. Pure.

use std::{collections::BTreeMap, fmt};

use windlass_kit::protobuf::{
    Problem,
    wire::{Payload, Reader, write_bytes_field, write_varint_field},
};

/// A message, whose fields its type lists with their numbers.
pub(crate) trait Message: Default {
    /// Appends the fields that differ from their defaults.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads one field; one that it does not have is skipped, since newer clients know more of them.
    fn read_field(&mut self, number: u32, payload: Payload<'_>) -> Result<(), Problem>;

    /// The message's bytes.
    fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Reads a message.
    fn decoded(bytes: &[u8]) -> Result<Self, Problem> {
        let mut message = Self::default();
        message.merge(bytes)?;
        Ok(message)
    }

    /// Reads fields on top of those that are there, as a message in several pieces is read.
    fn merge(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            self.read_field(number, payload)?;
        }
        Ok(())
    }
}

/// A value of a field.
pub(super) trait Field {
    /// Appends the field, unless it has its default.
    fn write(&self, number: u32, out: &mut Vec<u8>);

    /// Sets the field, or adds to it where it may be given more than once.
    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem>;
}

fn wrong_type(expected: &str, found: Payload<'_>) -> Problem {
    Problem::WireType { expected: expected.to_owned(), found: found.wire_type() as u8 }
}

fn bytes<'a>(payload: Payload<'a>, expected: &str) -> Result<&'a [u8], Problem> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        other => Err(wrong_type(expected, other)),
    }
}

fn text(payload: Payload<'_>) -> Result<String, Problem> {
    let bytes = bytes(payload, "string")?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Problem::Utf8)
}

fn number(payload: Payload<'_>) -> Result<u64, Problem> {
    match payload {
        Payload::Varint(number) => Ok(number),
        other => Err(wrong_type("number", other)),
    }
}

impl Field for String {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        if !self.is_empty() {
            write_bytes_field(out, number, self.as_bytes());
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        *self = text(payload)?;
        Ok(())
    }
}

/// A secret text, which `Debug` does not print.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl Field for Hidden {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        self.0.write(number, out);
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        self.0.read(payload)
    }
}

impl Field for Vec<String> {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|text| write_bytes_field(out, number, text.as_bytes()));
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        self.push(text(payload)?);
        Ok(())
    }
}

impl Field for Vec<u8> {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        if !self.is_empty() {
            write_bytes_field(out, number, self);
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        *self = bytes(payload, "bytes")?.to_vec();
        Ok(())
    }
}

/// Numbers: a negative one has the ten bytes of its 64 bits, and what is too long for its type is cut, as Go does it.
macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Field for $type {
            #[allow(clippy::cast_sign_loss, clippy::cast_possible_wrap, reason = "the bits are what is sent")]
            #[allow(trivial_numeric_casts, clippy::unnecessary_cast, clippy::cast_lossless, reason = "one text for all types")]
            fn write(&self, number: u32, out: &mut Vec<u8>) {
                if *self != 0 {
                    write_varint_field(out, number, *self as i64 as u64);
                }
            }

            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "as Go does it")]
            #[allow(trivial_numeric_casts, clippy::unnecessary_cast, reason = "one text for all types")]
            fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
                *self = number(payload)? as $type;
                Ok(())
            }
        }
    )*};
}

numbers!(i32, u32, i64, u64);

impl Field for bool {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        if *self {
            write_varint_field(out, number, 1);
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        *self = number(payload)? != 0;
        Ok(())
    }
}

impl<M: Message> Field for Option<M> {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(message) = self {
            write_bytes_field(out, number, &message.encoded());
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        self.get_or_insert_default().merge(bytes(payload, "message")?)
    }
}

impl<M: Message> Field for Vec<M> {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|message| write_bytes_field(out, number, &message.encoded()));
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        self.push(M::decoded(bytes(payload, "message")?)?);
        Ok(())
    }
}

/// On the wire a map is a list of messages with the fields 1, the key, and 2, the value.
impl Field for BTreeMap<String, String> {
    fn write(&self, number: u32, out: &mut Vec<u8>) {
        for (key, value) in self {
            let mut entry = Vec::with_capacity(key.len() + value.len() + 4);
            write_bytes_field(&mut entry, 1, key.as_bytes());
            write_bytes_field(&mut entry, 2, value.as_bytes());
            write_bytes_field(out, number, &entry);
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), Problem> {
        let (mut key, mut value) = (String::new(), String::new());
        let mut entry = Reader::new(bytes(payload, "map")?);
        while let Some((number, payload)) = entry.next()? {
            match number {
                1 => key = text(payload)?,
                2 => value = text(payload)?,
                _ => {}
            }
        }
        self.insert(key, value);
        Ok(())
    }
}

/// Messages: each field with its type and its number in upstream's `api.proto`. This is the table that both directions follow.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $number:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        #[cfg_attr(test, derive(serde::Serialize))]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        impl $crate::cri::messages::field::Message for $name {
            #[allow(unused_variables, reason = "some have no fields")]
            fn write(&self, out: &mut Vec<u8>) {
                $($crate::cri::messages::field::Field::write(&self.$field, $number, out);)*
            }

            #[allow(unused_variables, reason = "some have no fields")]
            fn read_field(
                &mut self,
                number: u32,
                payload: windlass_kit::protobuf::wire::Payload<'_>,
            ) -> Result<(), windlass_kit::protobuf::Problem> {
                match number {
                    $($number => $crate::cri::messages::field::Field::read(&mut self.$field, payload),)*
                    _ => Ok(()),
                }
            }
        }
    )*};
}

pub(super) use messages;
