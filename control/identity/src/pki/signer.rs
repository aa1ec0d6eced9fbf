//! The cluster's CA as a signer of requests from outside, with the subject and the key that they name.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, KeyPair, SigningKey as _};
use ring::rand::{SecureRandom as _, SystemRandom};
use windlass_kit::private_key::PrivateKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{
    Error,
    authority::{CA_CERT, CA_KEY, first, key_of_subject},
    der::{self, BIT_STRING, SEQUENCE, bits, extension, integer, name, object_id, tagged, time},
    files,
    request::CertificateRequest,
};

/// The longest life of a certificate; upstream's `--cluster-signing-duration`.
const MAX_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The shortest.
const MIN_LIFE: SignedDuration = SignedDuration::from_mins(10);
/// Tolerates clients whose clocks are behind.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// Shorter lives are not shortened by that.
const SHORT_LIFE: SignedDuration = SignedDuration::from_hours(8);

/// Signs with the CA in a directory. Certificate and key are read for each: either may have been renewed.
#[derive(Debug, Clone)]
pub struct ClusterSigner {
    dir: PathBuf,
}

/// What a certificate is good for: bits of the key usage, and identifiers of extended ones.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usages {
    key: Vec<u8>,
    extended: Vec<&'static [u64]>,
}

impl ClusterSigner {
    /// A signer with the CA in `dir`.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// A certificate in PEM for a request, of this life in seconds or the longest, for these usages of
    /// `certificates.k8s.io`.
    ///
    /// # Errors
    /// When the CA cannot be read, or a usage is unknown.
    pub fn sign(&self, request: &CertificateRequest, usages: &[String], seconds: Option<i32>) -> Result<String, Error> {
        let path = self.dir.join(CA_CERT);
        let wrong = |e: &dyn std::fmt::Display| Error::Content { path: path.clone(), reason: e.to_string() };
        let cert_pem = files::read(&path)?.ok_or_else(|| wrong(&"it is missing"))?;
        let key_path = self.dir.join(CA_KEY);
        let key_pem = files::read_key(&key_path)?.ok_or_else(|| Error::Content {
            path: key_path.clone(),
            reason: "it is missing, and no certificate can be made without it".to_owned(),
        })?;
        let unusable = |reason: String| Error::Content { path: key_path.clone(), reason };
        let key = PrivateKey::from_pem(&key_pem).map_err(|e| unusable(e.to_string()))?;
        let key = KeyPair::try_from(key.pkcs8()).map_err(|e| unusable(e.to_string()))?;
        let pem = first(&cert_pem).ok_or_else(|| wrong(&"no certificate can be read of it"))?;
        let authority = pem.parse_x509().map_err(|e| wrong(&e))?;
        let make = |reason| Error::Make { name: request.subject.common_name().to_owned(), reason };
        let signed = signed(request, usages, seconds, &authority, &key).map_err(make)?;
        Ok(to_pem("CERTIFICATE", &signed))
    }
}

/// A certificate in DER, signed with the key of an authority.
pub(super) fn signed(
    request: &CertificateRequest,
    usages: &[String],
    seconds: Option<i32>,
    authority: &X509Certificate<'_>,
    key: &KeyPair,
) -> Result<Vec<u8>, String> {
    let usages = read_usages(usages).map_err(|usage| format!("unrecognized usage {usage:?}"))?;
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| "the system gives no random numbers")?;
    // Neither zero nor negative.
    serial[0] = serial[0] & 0x7f | 0x40;
    let algorithm = algorithm_of(key).map_err(|e| e.to_string())?;
    let validity = validity(Timestamp::now(), seconds, authority.validity().not_after.timestamp());
    let content = to_be_signed(request, &usages, authority, (&serial, &algorithm), validity);
    let signature = key.sign(&content).map_err(|e| e.to_string())?;
    let signed = tagged(SEQUENCE, &[&content, &algorithm, &tagged(BIT_STRING, &[&[0], &signature])]);
    X509Certificate::from_der(&signed).map_err(|e| e.to_string())?;
    Ok(signed)
}

pub(super) fn to_pem(label: &str, der: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    const LINE: usize = 64;
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem + &format!("-----END {label}-----\n")
}

/// The key's signature algorithm, in DER: taken from a certificate that it has signed, since the library does not
/// expose it.
pub(super) fn algorithm_of(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let sample = CertificateParams::default().self_signed(key)?;
    let algorithm = || {
        let (_, after) = der::first(der::content(sample.der())?)?;
        Some(der::first(after)?.0.to_vec())
    };
    algorithm().ok_or(rcgen::Error::CouldNotParseCertificate)
}

/// From when to when a certificate is valid. Pure.
fn validity(now: Timestamp, seconds: Option<i32>, authority_ends: i64) -> (Timestamp, Timestamp) {
    let asked = seconds.map_or(MAX_LIFE, |seconds| SignedDuration::from_secs(i64::from(seconds)));
    let life = asked.clamp(MIN_LIFE, MAX_LIFE);
    let begin = now.checked_sub(BACKDATE).unwrap_or(now);
    let from = if life < SHORT_LIFE { now } else { begin };
    let end = from.checked_add(life).unwrap_or(Timestamp::MAX);
    (begin, end.min(Timestamp::from_second(authority_ends).unwrap_or(Timestamp::MAX)))
}

/// The part of a certificate that is signed. Pure.
fn to_be_signed(
    request: &CertificateRequest,
    usages: &Usages,
    authority: &X509Certificate<'_>,
    (serial, algorithm): (&[u8], &[u8]),
    (begin, end): (Timestamp, Timestamp),
) -> Vec<u8> {
    const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
    let mut extensions = Vec::new();
    if !usages.key.is_empty() {
        extensions.push(extension(&[2, 5, 29, 15], true, &bits(&usages.key)));
    }
    if !usages.extended.is_empty() {
        let all: Vec<u8> = usages.extended.iter().flat_map(|arcs| object_id(arcs)).collect();
        extensions.push(extension(&[2, 5, 29, 37], false, &tagged(SEQUENCE, &[&all])));
    }
    // It is no CA.
    extensions.push(extension(&[2, 5, 29, 19], true, &tagged(SEQUENCE, &[])));
    if let Some(key) = key_of_subject(authority) {
        extensions.push(extension(&[2, 5, 29, 35], false, &tagged(SEQUENCE, &[&tagged(0x80, &[&key])])));
    }
    if !request.alternative_names.is_empty() {
        let names: Vec<u8> = request.alternative_names.iter().flat_map(|(tag, name)| tagged(*tag, &[name])).collect();
        extensions.push(extension(SUBJECT_ALT_NAME, request.subject.is_empty(), &tagged(SEQUENCE, &[&names])));
    }
    tagged(
        SEQUENCE,
        &[
            // Version 3.
            &tagged(0xa0, &[&integer(&[2])]),
            &integer(serial),
            algorithm,
            authority.subject().as_raw(),
            &tagged(SEQUENCE, &[&time(begin), &time(end)]),
            &name(&request.subject),
            &request.public_key,
            &tagged(0xa3, &[&tagged(SEQUENCE, &[&extensions.concat()])]),
        ],
    )
}

/// The usages by their names; of an error the one that is unknown. Pure.
fn read_usages(names: &[String]) -> Result<Usages, String> {
    let mut usages = Usages::default();
    for name in names {
        let bit = match name.as_str() {
            "signing" | "digital signature" => Some(0),
            "content commitment" => Some(1),
            "key encipherment" => Some(2),
            "data encipherment" => Some(3),
            "key agreement" => Some(4),
            "cert sign" => Some(5),
            "crl sign" => Some(6),
            "encipher only" => Some(7),
            "decipher only" => Some(8),
            _ => None,
        };
        let extended: Option<&'static [u64]> = match name.as_str() {
            "any" => Some(&[2, 5, 29, 37, 0]),
            "server auth" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 1]),
            "client auth" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 2]),
            "code signing" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 3]),
            "email protection" | "s/mime" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 4]),
            "ipsec end system" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 5]),
            "ipsec tunnel" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 6]),
            "ipsec user" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 7]),
            "timestamping" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 8]),
            "ocsp signing" => Some(&[1, 3, 6, 1, 5, 5, 7, 3, 9]),
            "microsoft sgc" => Some(&[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
            "netscape sgc" => Some(&[2, 16, 840, 1, 113_730, 4, 1]),
            _ => None,
        };
        if bit.is_none() && extended.is_none() {
            return Err(name.clone());
        }
        usages.key.extend(bit);
        usages.extended.extend(extended);
    }
    usages.extended.sort_unstable();
    usages.extended.dedup();
    Ok(usages)
}

#[cfg(test)]
mod tests {
    use rcgen::{DnType, SanType};
    use windlass_kit::subject::Subject;

    use super::{
        super::{
            Lifetimes,
            authority::{Authority, CLUSTER},
            unusual,
        },
        *,
    };

    fn request(change: impl FnOnce(&mut CertificateParams)) -> (CertificateRequest, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params.distinguished_name.push(DnType::CommonName, "ann");
        change(&mut params);
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        (CertificateRequest::from_pem(pem.as_bytes()).unwrap(), key)
    }

    #[test]
    fn a_certificate_has_subject_key_names_and_usages_of_its_request() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path(), CLUSTER, Lifetimes::default()).unwrap();
        let signer = ClusterSigner::new(dir.path().to_owned());
        let (request, key) = request(|params| {
            params.subject_alt_names = vec![SanType::DnsName("a.example".try_into().unwrap())];
        });
        assert_eq!((&request.subject, request.dns_names), (&Subject::of_user("ann", &["dev"]), 1));
        let usages = ["digital signature", "key encipherment", "client auth"].map(str::to_owned);
        let pem = signer.sign(&request, &usages, Some(600)).unwrap();
        let pem = first(&pem).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let ca = first(&authority.pem).unwrap();
        let ca = ca.parse_x509().unwrap();
        certificate.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(certificate.issuer().as_raw(), ca.subject().as_raw());
        assert_eq!(certificate.subject().to_string(), "O=dev, CN=ann");
        assert_eq!(certificate.public_key().raw, rcgen::PublicKeyData::subject_public_key_info(&key).as_slice());
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
        let extended = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.client_auth && !extended.server_auth);
        assert!(!certificate.is_ca());
        let names = certificate.subject_alternative_name().unwrap().unwrap().value;
        assert_eq!(names.general_names.len(), 1);
        let life = certificate.validity().not_after.timestamp() - Timestamp::now().as_second();
        assert!((598..=600).contains(&life), "{life}");
    }

    #[test]
    fn a_request_with_two_common_names_is_nobodys() {
        let key = KeyPair::generate().unwrap();
        let request = |attributes: &[(u8, u8, &[u8])]| {
            let pem = unusual::request(&unusual::name(attributes), &[], &key).unwrap();
            CertificateRequest::from_pem(pem.as_bytes())
        };
        let nodes = (10, 12, &b"system:nodes"[..]);
        let (alice, node) = ((3, 12, &b"alice"[..]), (3, 12, &b"system:node:n1"[..]));
        for two in [[nodes, alice, node], [alice, node, nodes], [node, nodes, alice], [node, node, nodes]] {
            let why = request(&two).unwrap_err();
            assert!(why.contains("2 common names"), "{why}");
        }
        let one = request(&[node, (12, 12, b"title"), nodes]).unwrap();
        assert_eq!(one.subject, Subject::of_user("system:node:n1", &["system:nodes"]));
        // The certificate is made of what was read, and the login reads that again.
        let dir = tempfile::tempdir().unwrap();
        Authority::open(dir.path(), CLUSTER, Lifetimes::default()).unwrap();
        let signed = ClusterSigner::new(dir.path().to_owned()).sign(&one, &[], None).unwrap();
        let pem = first(&signed).unwrap();
        assert_eq!(pem.parse_x509().unwrap().subject().to_string(), "O=system:nodes, CN=system:node:n1");
        let identity = windlass_kit::serve::identity(&pem.contents).unwrap();
        assert_eq!(
            (identity.name.as_str(), &identity.groups[..]),
            ("system:node:n1", &["system:nodes".to_owned()][..])
        );
    }

    #[test]
    fn a_life_is_bounded() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let far = i64::from(i32::MAX) * 2;
        for (seconds, ends, from_now) in [
            (None, far, 365 * 86_400 - 300),
            (Some(i32::MAX), far, 365 * 86_400 - 300),
            (Some(1), far, 600),
            (Some(3600), far, 3600),
            (Some(86_400), far, 86_400 - 300),
            (Some(86_400), now.as_second() + 5, 5),
        ] {
            let (begin, end) = validity(now, seconds, ends);
            assert_eq!(now.as_second() - begin.as_second(), 300);
            assert_eq!(end.as_second() - now.as_second(), from_now, "{seconds:?}");
        }
    }

    #[test]
    fn usages_are_known_by_name() {
        let read = |names: &[&str]| read_usages(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            read(&["signing", "server auth"]).unwrap(),
            Usages { key: vec![0], extended: vec![&[1, 3, 6, 1, 5, 5, 7, 3, 1]] }
        );
        assert_eq!(read(&["client auth", "nonsense"]), Err("nonsense".to_owned()));
    }

    #[test]
    fn a_forged_request_is_refused() {
        let key = KeyPair::generate().unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        let mut der = request.der().to_vec();
        let last = der.len() - 1;
        der[last] ^= 1;
        let pem = to_pem("CERTIFICATE REQUEST", &der);
        let why = CertificateRequest::from_pem(pem.as_bytes()).unwrap_err();
        assert!(why.contains("signature"), "{why}");
        assert!(CertificateRequest::from_pem(b"x").is_err());
    }
}
