//! The little of DER that keys and certificates of others need. Pure.

/// Tags of the values that are read or written.
pub const INTEGER: u8 = 0x02;
/// Bits, the first byte of which says how many of the last one are unused.
pub const BIT_STRING: u8 = 0x03;
/// Bytes.
pub const OCTET_STRING: u8 = 0x04;
/// An identifier of an algorithm, a curve or an attribute.
pub const OBJECT_ID: u8 = 0x06;
/// Several values.
pub const SEQUENCE: u8 = 0x30;

/// A value with its tag and length.
#[must_use]
pub fn tagged(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
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
#[must_use]
pub fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = header(bytes)?;
    let end = header.checked_add(length).filter(|end| *end <= bytes.len())?;
    Some(bytes.split_at(end))
}

/// What is within a value.
#[must_use]
pub fn content(value: &[u8]) -> Option<&[u8]> {
    let (header, length) = header(value)?;
    value.get(header..header.checked_add(length)?)
}

/// The values within a value, as far as they can be read.
pub fn values(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = content(value).unwrap_or_default();
    std::iter::from_fn(move || {
        let (value, after) = first(rest)?;
        rest = after;
        Some(value)
    })
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
#[must_use]
pub fn object_id(arcs: &[u64]) -> Vec<u8> {
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
#[must_use]
pub fn integer(bytes: &[u8]) -> Vec<u8> {
    let sign: &[u8] = if bytes.first().is_some_and(|first| *first >= 0x80) { &[0] } else { &[] };
    tagged(INTEGER, &[sign, bytes])
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
            assert_eq!(values(cut).count(), 0, "{cut:?}");
        }
        let two = tagged(SEQUENCE, &[&integer(&[1]), &integer(&[2])]);
        assert_eq!(values(&two).map(<[u8]>::to_vec).collect::<Vec<_>>(), [integer(&[1]), integer(&[2])]);
    }
}
