//! Requests that no library makes, for tests and fuzzers: with any bytes as the name of the subject.

use rcgen::{CertificateParams, KeyPair, PublicKeyData as _, SigningKey as _};
use windlass_kit::subject::Subject;
use x509_parser::parse_x509_certificate;

use super::{
    der::{BIT_STRING, SEQUENCE, integer, object_id, tagged},
    request::CertificateRequest,
    signer::{algorithm_of, signed, to_pem},
};

/// A name of attributes: the last number of the identifier (3 is the common name, 10 the organization), the tag of the
/// text, and the text.
pub fn name(attributes: &[(u8, u8, &[u8])]) -> Vec<u8> {
    let one = |(kind, tag, text): &(u8, u8, &[u8])| {
        let pair = [object_id(&[2, 5, 4, u64::from(*kind)]), tagged(*tag, &[text])].concat();
        tagged(0x31, &[&tagged(SEQUENCE, &[&pair])])
    };
    tagged(SEQUENCE, &[&attributes.iter().flat_map(one).collect::<Vec<_>>()])
}

/// A request in PEM for a name in DER, signed with its key, whose attributes have these bytes.
pub fn request(name: &[u8], attributes: &[u8], key: &KeyPair) -> Option<String> {
    let info = [&integer(&[0]), name, &key.subject_public_key_info(), &tagged(0xa0, &[attributes])];
    let info = tagged(SEQUENCE, &info.map(|part: &[u8]| part));
    let signature = key.sign(&info).ok()?;
    let algorithm = algorithm_of(key).ok()?;
    let request = tagged(SEQUENCE, &[&info, &algorithm, &tagged(BIT_STRING, &[&[0], &signature])]);
    Some(to_pem("CERTIFICATE REQUEST", &request))
}

/// A name whose attributes are made of any bytes: kind, tag and length, and the text, until they end.
pub fn name_of(mut bytes: &[u8]) -> Vec<u8> {
    const KINDS: [u8; 4] = [3, 10, 11, 12];
    const TAGS: [u8; 4] = [12, 19, 20, 30];
    let mut attributes = Vec::new();
    while let [kind, length, rest @ ..] = bytes {
        let (text, more) = rest.split_at(usize::from(*length).min(rest.len()));
        attributes.push((KINDS[usize::from(kind & 3)], TAGS[usize::from(kind >> 2 & 3)], text));
        bytes = more;
    }
    name(&attributes)
}

/// An authority in memory, and the key of all who ask it.
#[derive(Debug)]
pub struct Authority {
    key: KeyPair,
    certificate: Vec<u8>,
    asker: KeyPair,
}

/// A certificate that was issued.
#[derive(Debug)]
pub struct Issued(Vec<u8>);

impl Issued {
    pub fn der(&self) -> &[u8] {
        &self.0
    }

    pub fn pem(&self) -> String {
        to_pem("CERTIFICATE", &self.0)
    }
}

impl Authority {
    /// # Panics
    /// When there is no randomness.
    pub fn generate() -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::default().self_signed(&key).expect("a certificate").der().to_vec();
        Self { key, certificate, asker: KeyPair::generate().expect("a key") }
    }

    /// What a request for a name in DER is read as, and the certificate for it; `None` if it is refused.
    pub fn issue(&self, name: &[u8]) -> Option<(Subject, Issued)> {
        let pem = request(name, &[], &self.asker)?;
        let request = CertificateRequest::from_pem(pem.as_bytes()).ok()?;
        let (_, authority) = parse_x509_certificate(&self.certificate).ok()?;
        let certificate = signed(&request, &[], None, &authority, &self.key).expect("what is read can be signed");
        Some((request.subject, Issued(certificate)))
    }
}
