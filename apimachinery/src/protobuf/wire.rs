//! The wire format of Protocol Buffers: tags, varints, length-delimited fields.

use super::Problem;

/// How a field's payload is laid out: the three low bits of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireType {
    /// Numbers, booleans and enumerations.
    Varint = 0,
    /// Eight bytes.
    Fixed64 = 1,
    /// Text, bytes and messages.
    Bytes = 2,
    /// Four bytes.
    Fixed32 = 5,
}

/// A field's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// See [`WireType::Varint`].
    Varint(u64),
    /// See [`WireType::Fixed64`].
    Fixed64(u64),
    /// See [`WireType::Fixed32`].
    Fixed32(u32),
    /// See [`WireType::Bytes`].
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    /// How it is laid out.
    #[must_use]
    pub const fn wire_type(self) -> WireType {
        match self {
            Self::Varint(_) => WireType::Varint,
            Self::Fixed64(_) => WireType::Fixed64,
            Self::Fixed32(_) => WireType::Fixed32,
            Self::Bytes(_) => WireType::Bytes,
        }
    }
}

/// Reads the fields of one message.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `message` from its beginning.
    #[must_use]
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next field's number and payload, or nothing at the end of the message.
    ///
    /// # Errors
    /// When the rest is no field.
    #[allow(clippy::should_implement_trait, reason = "an iterator would go on after an error")]
    pub fn next(&mut self) -> Result<Option<(u32, Payload<'a>)>, Problem> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..=MAX_FIELD_NUMBER).contains(number));
        let number = number.ok_or(Problem::FieldNumber(tag >> 3))?;
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = self.varint()?;
                Payload::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(Problem::UnsupportedWireType(other)),
        };
        Ok(Some((number, payload)))
    }

    /// A number in groups of seven bits, the lowest first.
    pub(super) fn varint(&mut self) -> Result<u64, Problem> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Problem::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Problem::VarintOverflow)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Problem::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Problem::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }
}

/// The largest field number of the format.
const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

pub(super) fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_bits(value) | 0x80);
        value >>= 7;
    }
    out.push(low_bits(value));
}

fn low_bits(value: u64) -> u8 {
    u8::try_from(value & 0x7f).unwrap_or_default()
}

pub(super) fn write_tag(out: &mut Vec<u8>, number: u32, wire_type: WireType) {
    write_varint(out, u64::from(number) << 3 | wire_type as u64);
}

/// Appends a number.
pub fn write_varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    write_tag(out, number, WireType::Varint);
    write_varint(out, value);
}

/// Appends eight bytes.
pub fn write_fixed64_field(out: &mut Vec<u8>, number: u32, value: u64) {
    write_tag(out, number, WireType::Fixed64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends text, bytes, or a message that is encoded already.
pub fn write_bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    write_tag(out, number, WireType::Bytes);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a length-delimited field whose content `write` appends. The length is known only afterwards: one byte is left for
/// it, and the content moves on if it needs more.
///
/// # Errors
/// Those of `write`.
pub fn write_nested<E>(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    write_tag(out, number, WireType::Bytes);
    let start = out.len();
    out.push(0);
    write(out)?;
    let length = (out.len() - start - 1) as u64;
    if length < 0x80 {
        out[start] = low_bits(length);
    } else {
        let mut prefix = Vec::with_capacity(5);
        write_varint(&mut prefix, length);
        out.splice(start..=start, prefix);
    }
    Ok(())
}
