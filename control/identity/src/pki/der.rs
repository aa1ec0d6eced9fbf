//! What a certificate for others needs of DER besides values. Pure.

pub(super) use windlass_kit::der::{BIT_STRING, OCTET_STRING, SEQUENCE, content, first, integer, object_id, tagged};
use windlass_kit::subject::Subject;

const BOOLEAN: u8 = 0x01;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const SET: u8 = 0x31;

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
        assert_eq!(bits(&[0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(bits(&[8]), [3, 3, 7, 0, 0x80]);
        assert_eq!(bits(&[]), [3, 1, 0]);
        assert_eq!(&time("2049-12-31T23:59:59Z".parse().unwrap())[2..], b"491231235959Z");
        assert_eq!(&time("2050-01-01T00:00:00Z".parse().unwrap())[2..], b"20500101000000Z");
    }
}
