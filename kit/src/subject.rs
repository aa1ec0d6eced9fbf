//! Subjects of certificates and of requests for them. Pure.
//!
//! A subject may have several common names, and then the approver, the signer and the authenticator may each read a
//! different one as the user. So there is one parser, which refuses such subjects, and everything uses its result.

use std::fmt;

use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// An attribute of names, by the numbers of its identifier.
type Kind = &'static [u64];

const COMMON_NAME: Kind = &[2, 5, 4, 3];
const ORGANIZATION: Kind = &[2, 5, 4, 10];

/// The attributes that a certificate takes over from its request, in the order in which it has them. All others fall away, as
/// in Go's `pkix.Name`.
const KINDS: [Kind; 9] = [
    // Country, organization and its unit.
    &[2, 5, 4, 6],
    ORGANIZATION,
    &[2, 5, 4, 11],
    // Locality, province, street, postal code.
    &[2, 5, 4, 7],
    &[2, 5, 4, 8],
    &[2, 5, 4, 9],
    &[2, 5, 4, 17],
    COMMON_NAME,
    // Serial number.
    &[2, 5, 4, 5],
];

/// Why a name is no subject here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// It has several common names.
    #[error(
        "the subject has {0} common names, of which one may be read as the user here and another one there: ask for one"
    )]
    CommonNames(usize),
    /// A part of it is no text that can be read.
    #[error("the {0} of the subject is no readable text: ask for one in UTF-8")]
    Unreadable(&'static str),
}

/// Whom a certificate is for. It has one common name, or none.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// Sorted by the order of [`KINDS`].
    attributes: Vec<(Kind, String)>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.attributes.iter().map(|(_, text)| text)).finish()
    }
}

impl Subject {
    /// The subject of a user and its groups.
    #[must_use]
    pub fn of_user(name: &str, groups: &[&str]) -> Self {
        let mut subject = Self::default();
        subject.attributes.extend(groups.iter().map(|group| (ORGANIZATION, (*group).to_owned())));
        subject.attributes.push((COMMON_NAME, name.to_owned()));
        subject
    }

    /// Reads a name.
    ///
    /// # Errors
    /// When it can be read in more than one way, or not at all.
    pub fn read(name: &X509Name<'_>) -> Result<Self, SubjectError> {
        let mut subject = Self::default();
        for kind in KINDS {
            let is_of = |attribute: &&AttributeTypeAndValue<'_>| {
                attribute.attr_type().iter().is_some_and(|numbers| numbers.eq(kind.iter().copied()))
            };
            for attribute in name.iter_attributes().filter(is_of) {
                let text = attribute.as_str().map_err(|_| SubjectError::Unreadable(word(kind)))?;
                subject.attributes.push((kind, text.to_owned()));
            }
        }
        match subject.all(COMMON_NAME).count() {
            0 | 1 => Ok(subject),
            many => Err(SubjectError::CommonNames(many)),
        }
    }

    fn all(&self, kind: Kind) -> impl Iterator<Item = &str> {
        self.attributes.iter().filter(move |(of, _)| *of == kind).map(|(_, text)| text.as_str())
    }

    /// The common name, which is a user; empty without one.
    #[must_use]
    pub fn common_name(&self) -> &str {
        self.all(COMMON_NAME).next().unwrap_or("")
    }

    /// The organizations, which are groups of a user.
    pub fn organizations(&self) -> impl Iterator<Item = &str> {
        self.all(ORGANIZATION)
    }

    /// All attributes, by the numbers of their identifiers, in the order in which a certificate has them.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static [u64], &str)> {
        self.attributes.iter().map(|(kind, text)| (*kind, text.as_str()))
    }

    /// Whether it has no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        COMMON_NAME => "common name",
        ORGANIZATION => "organization",
        _ => "address",
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::FromDer as _;

    use super::*;

    /// A name in DER: the last number of each attribute's identifier, the tag of its text, the text.
    fn name(attributes: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let tagged = |tag: u8, content: Vec<u8>| [vec![tag, u8::try_from(content.len()).unwrap()], content].concat();
        let one = |(kind, tag, text): &(u8, u8, &[u8])| {
            let pair = [vec![6, 3, 0x55, 4, *kind], tagged(*tag, text.to_vec())].concat();
            tagged(0x31, tagged(0x30, pair))
        };
        tagged(0x30, attributes.iter().flat_map(one).collect())
    }

    fn read(attributes: &[(u8, u8, &[u8])]) -> Result<Subject, SubjectError> {
        let der = name(attributes);
        Subject::read(&X509Name::from_der(&der).unwrap().1)
    }

    const UTF8: u8 = 12;
    const PRINTABLE: u8 = 19;
    const TELETEX: u8 = 20;

    #[test]
    fn a_subject_has_one_common_name() {
        let one = read(&[(3, UTF8, "jürgen".as_bytes()), (10, UTF8, b"b"), (10, PRINTABLE, b"a"), (12, UTF8, b"x")]);
        assert_eq!(one, Ok(Subject::of_user("jürgen", &["b", "a"])), "titles fall away");
        assert_eq!(read(&[(10, UTF8, b"a")]).unwrap().common_name(), "");
        assert!(read(&[]).unwrap().is_empty());
        for second in ["system:node:n1", "alice", ""] {
            let two = read(&[(3, UTF8, b"alice"), (10, UTF8, b"system:nodes"), (3, PRINTABLE, second.as_bytes())]);
            assert_eq!(two, Err(SubjectError::CommonNames(2)), "{second}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        // A group that falls away would be one that a rule of others may look for.
        assert_eq!(read(&[(3, UTF8, b"a"), (10, TELETEX, b"g\xfc")]), Err(SubjectError::Unreadable("organization")));
        assert_eq!(read(&[(3, TELETEX, b"a")]), Err(SubjectError::Unreadable("common name")));
        assert_eq!(read(&[(3, UTF8, b"a"), (3, TELETEX, b"b")]), Err(SubjectError::Unreadable("common name")));
    }
}
