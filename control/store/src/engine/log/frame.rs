//! The bytes of the log. Pure.
//!
//! A file begins with [`HEADER`]. Each commit is one frame: magic, length and CRC-32 of the payload, payload. A payload
//! has the counters and the records. Numbers are little-endian, texts have their length before them. So a commit is
//! there as a whole or not at all.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use super::super::{Counters, Record};
use crate::{Key, Object};

/// The last byte is the version of the format; raised when older programs can no longer read it.
pub(super) const HEADER: &[u8; 16] = b"windlass store\n\x01";
pub(super) const MAGIC: [u8; 4] = *b"WLc\xf7";
/// Length of magic, length and checksum.
pub(super) const PREFIX: usize = 12;
/// No payload is longer: a batch is limited, and an object is far smaller.
pub(super) const MAX_PAYLOAD: usize = 1 << 30;

const DELETED: u8 = 1;

/// Length and checksum of the payload that follows; `None` when this is no frame.
pub(super) fn read_prefix(prefix: &[u8; PREFIX]) -> Option<(usize, u32)> {
    let number = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    let length = usize::try_from(number(4)).ok()?;
    (prefix[..4] == MAGIC && length <= MAX_PAYLOAD).then(|| (length, number(8)))
}

/// Appends a frame. One that no start would read again is refused, and nothing is appended.
pub(super) fn write_frame(out: &mut Vec<u8>, records: &[Record], counters: &Counters) -> io::Result<()> {
    write_frame_within(MAX_PAYLOAD, out, records, counters)
}

fn write_frame_within(
    max_payload: usize,
    out: &mut Vec<u8>,
    records: &[Record],
    counters: &Counters,
) -> io::Result<()> {
    let start = out.len();
    let objects: usize = records.iter().filter(|record| !record.deleted).map(|record| record.object.bytes.len()).sum();
    if objects > max_payload {
        return Err(too_long(objects, max_payload));
    }
    out.extend_from_slice(&[0; PREFIX]);
    for counter in [counters.revision, counters.ceiling, counters.floor] {
        out.extend_from_slice(&counter.to_le_bytes());
    }
    write_length(out, counters.compacted.len());
    for (name, revision) in &counters.compacted {
        write_text(out, name.as_bytes());
        out.extend_from_slice(&revision.to_le_bytes());
    }
    write_length(out, records.len());
    for record in records {
        write_record(out, record);
    }
    let payload = &out[start + PREFIX..];
    if payload.len() > max_payload {
        let error = too_long(payload.len(), max_payload);
        out.truncate(start);
        return Err(error);
    }
    let (length, checksum) = (u32::try_from(payload.len()).unwrap_or(u32::MAX), crc32fast::hash(payload));
    out[start..start + 4].copy_from_slice(&MAGIC);
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    out[start + 8..start + PREFIX].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

fn too_long(bytes: usize, max_payload: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("a commit of {bytes} bytes is longer than {max_payload}, which could not be read again"),
    )
}

fn write_record(out: &mut Vec<u8>, record: &Record) {
    let object = &record.object;
    out.push(if record.deleted { DELETED } else { 0 });
    out.extend_from_slice(&object.revision.to_le_bytes());
    out.extend_from_slice(&record.unix_seconds.to_le_bytes());
    out.extend_from_slice(&object.revision_at.to_le_bytes());
    for text in [record.resource.as_bytes(), object.key.namespace.as_bytes(), object.key.name.as_bytes()] {
        write_text(out, text);
    }
    // The last state of a deleted object is that before it.
    write_text(out, if record.deleted { &[] } else { &object.bytes });
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    write_length(out, text.len());
    out.extend_from_slice(text);
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn record(&mut self, known: &mut Option<Arc<str>>) -> Option<Record> {
        let deleted = self.take(1)?[0] & DELETED != 0;
        let (revision, unix_seconds, revision_at) = (self.long()?, self.long()?, self.number()?);
        let name = self.text()?;
        let resource = match known {
            Some(resource) if **resource == *name => Arc::clone(resource),
            _ => Arc::clone(known.insert(name.into())),
        };
        let key = Key { namespace: self.text()?.to_owned(), name: self.text()?.to_owned() };
        let bytes = Bytes::copy_from_slice(self.bytes()?);
        let object = Arc::new(Object { key, revision, bytes, revision_at, index_values: OnceLock::new() });
        Some(Record { resource, object, deleted, unix_seconds })
    }
}

/// Reads a payload whose checksum was right; `None` when it is none of ours all the same.
pub(super) fn read_payload(payload: &[u8], counters: &mut Counters) -> Option<Vec<Record>> {
    let mut reader = Reader(payload);
    let mut read =
        Counters { revision: reader.long()?, ceiling: reader.long()?, floor: reader.long()?, ..Counters::default() };
    for _ in 0..reader.number()? {
        let name = reader.text()?.to_owned();
        read.compacted.insert(name, reader.long()?);
    }
    let (mut known, mut records) = (None, Vec::new());
    for _ in 0..reader.number()? {
        records.push(reader.record(&mut known)?);
    }
    counters.merge(&read);
    reader.0.is_empty().then_some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_could_not_be_read_again_is_refused() {
        let object = Object {
            key: Key { namespace: "n".to_owned(), name: "a".to_owned() },
            revision: 7,
            bytes: Bytes::from(vec![b'x'; 1000]),
            revision_at: 0,
            index_values: OnceLock::new(),
        };
        let record =
            |deleted| Record { resource: "r".into(), object: Arc::new(object.clone()), deleted, unix_seconds: 0 };
        let (counters, mut out) = (Counters::default(), vec![1, 2]);
        for limit in [0, 999, 1000, 1050] {
            assert!(write_frame_within(limit, &mut out, &[record(false)], &counters).is_err(), "{limit}");
            assert_eq!(out, [1, 2], "{limit}");
        }
        write_frame_within(2000, &mut out, &[record(false)], &counters).unwrap();
        let (length, checksum) = read_prefix(&out[2..2 + PREFIX].try_into().unwrap()).unwrap();
        let payload = &out[2 + PREFIX..];
        assert_eq!((payload.len(), crc32fast::hash(payload)), (length, checksum));
        // The last state of a deleted object is not written.
        write_frame_within(500, &mut out, &[record(true)], &counters).unwrap();
    }
}
