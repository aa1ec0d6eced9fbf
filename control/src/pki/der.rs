//! The little of DER that a certificate for others needs. Pure.

use windlass_kit::subject::Subject;

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const SET: u8 = 0x31;

/// A value with its tag and length.
pub(super) fn tagged(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => bytes.push(short),
        _ => {
            let all = length.to_be_bytes();
            let significant = &all[all.iter().take_while(|byte| **byte == 0).count()..];
            bytes.push(0x80 | u8::try_from(significant.len()).unwrap_or(0x7f));
            bytes.extend_from_slice(significant);
        }
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// The first value of `bytes` with its tag and length, and what follows it.
pub(super) fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = header(bytes)?;
    let end = header.checked_add(length).filter(|end| *end <= bytes.len())?;
    Some(bytes.split_at(end))
}

/// What is within a value.
pub(super) fn content(value: &[u8]) -> Option<&[u8]> {
    let (header, length) = header(value)?;
    value.get(header..header.checked_add(length)?)
}

/// How long tag and length are, and what is within.
fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.get(1)?);
    if first < 0x80 {
        return Some((2, first));
    }
    let more = bytes.get(2..2 + (first & 0x7f))?;
    let length = more.iter().try_fold(0_usize, |length, byte| Some(length.checked_mul(256)? + usize::from(*byte)))?;
    Some((2 + more.len(), length))
}

/// An object identifier.
pub(super) fn object_id(arcs: &[u64]) -> Vec<u8> {
    let [first, second, rest @ ..] = arcs else { return tagged(OBJECT_ID, &[]) };
    let mut bytes = Vec::new();
    for arc in std::iter::once(&(first * 40 + second)).chain(rest) {
        let groups = (1..10).find(|groups| arc >> (7 * groups) == 0).unwrap_or(10);
        for group in (0..groups).rev() {
            let bits = u8::try_from((arc >> (7 * group)) & 0x7f).unwrap_or(0);
            bytes.push(if group == 0 { bits } else { bits | 0x80 });
        }
    }
    tagged(OBJECT_ID, &[&bytes])
}

/// A positive number of a few bytes, the first of them not zero.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let sign: &[u8] = if bytes.first().is_some_and(|first| *first >= 0x80) { &[0] } else { &[] };
    tagged(INTEGER, &[sign, bytes])
}

/// Bits, of which the first is number 0.
pub(super) fn bits(set: &[u8]) -> Vec<u8> {
    let Some(last) = set.iter().max() else { return tagged(BIT_STRING, &[&[0]]) };
    let mut bytes = vec![0_u8; usize::from(last / 8) + 1];
    set.iter().for_each(|bit| bytes[usize::from(bit / 8)] |= 0x80 >> (bit % 8));
    tagged(BIT_STRING, &[&[7 - last % 8], &bytes])
}

/// A name with the attributes of a subject.
pub(super) fn name(subject: &Subject) -> Vec<u8> {
    let is_printable = |c: char| c.is_ascii_alphanumeric() || " '()+,-./:=?".contains(c);
    let attribute = |(kind, text): (&[u64], &str)| {
        let tag = if text.chars().all(is_printable) { PRINTABLE_STRING } else { UTF8_STRING };
        tagged(SET, &[&tagged(SEQUENCE, &[&object_id(kind), &tagged(tag, &[text.as_bytes()])])])
    };
    tagged(SEQUENCE, &[&subject.attributes().flat_map(attribute).collect::<Vec<_>>()])
}

/// A time; from 2050 on in the longer form.
pub(super) fn time(at: jiff::Timestamp) -> Vec<u8> {
    let long = at.strftime("%Y%m%d%H%M%SZ").to_string();
    if long.as_str() < "2050" {
        tagged(UTC_TIME, &[&long.as_bytes()[2..]])
    } else {
        tagged(GENERALIZED_TIME, &[long.as_bytes()])
    }
}

/// An extension of a certificate.
pub(super) fn extension(arcs: &[u64], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if critical { tagged(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
    tagged(SEQUENCE, &[&object_id(arcs), &critical, &tagged(OCTET_STRING, &[value])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bytes_of_the_standard() {
        assert_eq!(tagged(SEQUENCE, &[&[1, 2]]), [0x30, 2, 1, 2]);
        assert_eq!(tagged(SEQUENCE, &[&[0; 200]])[..3], [0x30, 0x81, 200]);
        assert_eq!(tagged(SEQUENCE, &[&[0; 300]])[..4], [0x30, 0x82, 1, 44]);
        assert_eq!(object_id(&[2, 5, 29, 15]), [6, 3, 0x55, 0x1d, 0x0f]);
        assert_eq!(object_id(&[1, 2, 840, 113_549]), [6, 6, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(bits(&[0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(bits(&[8]), [3, 3, 7, 0, 0x80]);
        assert_eq!(bits(&[]), [3, 1, 0]);
        assert_eq!(&time("2049-12-31T23:59:59Z".parse().unwrap())[2..], b"491231235959Z");
        assert_eq!(&time("2050-01-01T00:00:00Z".parse().unwrap())[2..], b"20500101000000Z");
    }

    #[test]
    fn values_are_found_again() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let inside = vec![7; length];
            let mut bytes = tagged(OCTET_STRING, &[&inside]);
            assert_eq!(content(&bytes), Some(&inside[..]));
            bytes.push(9);
            assert_eq!(first(&bytes).unwrap().1, [9]);
        }
        for cut in [&[][..], &[0x30], &[0x30, 2, 1], &[0x30, 0x82, 1], &[0x30, 0xff]] {
            assert_eq!(first(cut), None, "{cut:?}");
        }
    }
}
