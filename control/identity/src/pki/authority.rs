//! The cluster CA: created once, its certificate renewed with the same key, and the leaf certificates that it issues.

use std::{net::IpAddr, path::Path};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use windlass_kit::{private_key::PrivateKey, subject::Subject};
use x509_parser::{
    extensions::{GeneralName, ParsedExtension},
    pem::Pem,
    prelude::X509Certificate,
};

use super::{Error, FRONT_PROXY_CLIENT, Lifetimes, Pair, days, files};

pub(super) const CA_CERT: &str = "ca.crt";
pub(super) const CA_KEY: &str = "ca.key";

/// The files of a CA, and its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct AuthorityFiles {
    pub(super) cert: &'static str,
    key: &'static str,
    /// Subject of one that is created here.
    name: &'static str,
    /// A certificate that is created after the CA.
    leaf: &'static str,
    /// Whether others hold the certificate, so that one that is lost must be put back. Another one is created otherwise.
    is_distributed: bool,
}

/// The CA of clients and servers.
pub(super) const CLUSTER: AuthorityFiles =
    AuthorityFiles { cert: CA_CERT, key: CA_KEY, name: "windlass", leaf: "apiserver", is_distributed: true };
/// The CA of the API server as a client of extension API servers, which believe whom it names: nobody else may have a
/// certificate of it. They read it in the API.
pub(super) const FRONT_PROXY: AuthorityFiles = AuthorityFiles {
    cert: "front-proxy-ca.crt",
    key: "front-proxy-ca.key",
    name: "windlass-front-proxy",
    leaf: FRONT_PROXY_CLIENT,
    is_distributed: false,
};

/// A certificate to issue.
pub(super) struct Leaf<'a> {
    pub(super) file: &'a str,
    pub(super) common_name: String,
    pub(super) organisation: Option<&'a str>,
    pub(super) names: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) usage: ExtendedKeyUsagePurpose,
}

/// Whether a CA is in use: there is a certificate that is created after it.
pub(super) fn is_in_use(dir: &Path, files: AuthorityFiles) -> Result<bool, Error> {
    Ok(files::read(&dir.join(format!("{}.crt", files.leaf)))?.is_some())
}

pub(super) struct Authority {
    /// The CA bundle: the current certificate, followed by earlier ones of the same key that have not expired, which
    /// clients may know alone.
    pub(super) pem: String,
    /// Expiry of the first certificate, in seconds since 1970.
    ends: i64,
    /// `None` when the CA key is stored elsewhere.
    pub(super) issuer: Option<Issuer<'static, KeyPair>>,
    lifetimes: Lifetimes,
}

/// The state of an existing certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CertificateState {
    Valid,
    /// Valid, and about to expire.
    ExpiresSoon,
    /// Expired, for other names, or of another CA.
    Invalid,
}

impl Authority {
    pub(super) fn open(dir: &Path, files: AuthorityFiles, lifetimes: Lifetimes) -> Result<Self, Error> {
        let (cert, key) = (dir.join(files.cert), dir.join(files.key));
        let make = |e: &dyn std::fmt::Display| Error::Make {
            name: format!("the authority {}", files.name),
            reason: e.to_string(),
        };
        let is_in_use = is_in_use(dir, files)?;
        let wrong =
            |path: &Path, e: &dyn std::fmt::Display| Error::Content { path: path.to_owned(), reason: e.to_string() };
        match (files::read(&cert)?, files::read_key(&key)?) {
            (Some(pem), Some(key_pem)) => {
                let own_key = PrivateKey::from_pem(&key_pem).map_err(|e| wrong(&key, &e))?;
                let key_pair = KeyPair::try_from(own_key.pkcs8()).map_err(|e| wrong(&key, &e))?;
                if !has_key(&pem, &own_key) {
                    let (cert, own) = (files.cert, "it is not the key of");
                    let reason = format!("{own} {cert} next to it; put back the two that belong together");
                    return Err(wrong(&key, &reason));
                }
                let pem = match renewed_bundle(&pem, files, &key_pair, lifetimes) {
                    Ok(Some(bundle)) => match files::write(&cert, &bundle) {
                        Ok(()) => bundle,
                        Err(error) => {
                            tracing::warn!(%error, "failed to renew CA certificate; the old one stays in use, retrying");
                            pem
                        }
                    },
                    Ok(None) => pem,
                    Err(error) => return Err(make(&error)),
                };
                let ends = ends(&pem).ok_or_else(|| wrong(&cert, &"no certificate can be read of it"))?;
                let issuer = Issuer::from_ca_cert_pem(&pem, key_pair).map_err(|e| wrong(&cert, &e))?;
                return Ok(Self { pem, ends, issuer: Some(issuer), lifetimes });
            }
            (Some(pem), None) => {
                if !is_in_use {
                    let cert = files.cert;
                    let reason =
                        format!("it is missing, and no certificate can be made without it; put it next to its {cert}");
                    return Err(wrong(&key, &reason));
                }
                let ends = ends(&pem).ok_or_else(|| wrong(&cert, &"no certificate can be read of it"))?;
                return Ok(Self { pem, ends, issuer: None, lifetimes });
            }
            (None, Some(_)) if is_in_use && files.is_distributed => {
                let reason = "it is missing, and ca.key is there; put it back: each kubeconfig has it as certificate-authority-data";
                return Err(wrong(&cert, &reason));
            }
            (None, None) if is_in_use && files.is_distributed => {
                let reason = "it is missing with its key, and certificates of it are in use; put both back, or move the whole folder \
                              away to begin again: every kubeconfig and every node then needs new certificates";
                return Err(wrong(&cert, &reason));
            }
            // The first start, or one that was interrupted.
            (None, _) => {}
        }
        let key_pair = KeyPair::generate().map_err(|e| make(&e))?;
        let pem = authority_params(files.name, lifetimes).self_signed(&key_pair).map_err(|e| make(&e))?.pem();
        // The key first: a certificate without it would be useless.
        files::write(&key, &key_pair.serialize_pem())?;
        files::write(&cert, &pem)?;
        let ends = ends(&pem).ok_or_else(|| make(&"it cannot be read back"))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key_pair).map_err(|e| make(&e))?;
        Ok(Self { pem, ends, issuer: Some(issuer), lifetimes })
    }

    pub(super) fn leaf(&self, dir: &Path, leaf: &Leaf<'_>) -> Result<Pair, Error> {
        let (cert, key) = (dir.join(format!("{}.crt", leaf.file)), dir.join(format!("{}.key", leaf.file)));
        let found = files::read(&cert)?.zip(files::read_key(&key)?);
        let found = found.map(|(cert_pem, key_pem)| (self.state_of(&cert_pem, leaf), Pair { cert_pem, key_pem }));
        let issuer = match (found, &self.issuer) {
            (Some((CertificateState::Valid, pair)), _) => return Ok(pair),
            (_, Some(issuer)) => issuer,
            (Some((CertificateState::ExpiresSoon, pair)), None) => {
                tracing::warn!(path = %cert.display(), "certificate expires soon and cannot be renewed without ca.key; put that next to ca.crt");
                return Ok(pair);
            }
            (Some((CertificateState::Invalid, _)) | None, None) => {
                let reason = "it must be reissued (it is missing, has expired or is for other names), and ca.key is not there; put that next to ca.crt";
                return Err(Error::Content { path: cert, reason: reason.to_owned() });
            }
        };
        let make = |e: &dyn std::fmt::Display| Error::Make { name: leaf.common_name.clone(), reason: e.to_string() };
        let key_pair = KeyPair::generate().map_err(|e| make(&e))?;
        let mut params = params(&leaf.common_name, leaf.organisation, self.lifetimes.leaf);
        // A leaf must not outlive the CA certificate.
        params.not_after = params.not_after.min(at(self.ends));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![leaf.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        for name in &leaf.names {
            params.subject_alt_names.push(SanType::DnsName(name.clone().try_into().map_err(|e| make(&e))?));
        }
        params.subject_alt_names.extend(leaf.addresses.iter().map(|a| SanType::IpAddress(*a)));
        let made = params.signed_by(&key_pair, issuer).map_err(|e| make(&e))?;
        let pair = Pair { cert_pem: made.pem(), key_pem: key_pair.serialize_pem() };
        files::write(&key, &pair.key_pem)?;
        files::write(&cert, &pair.cert_pem)?;
        Ok(pair)
    }

    /// The state of a certificate: issuer, expiry and names.
    fn state_of(&self, pem: &str, leaf: &Leaf<'_>) -> CertificateState {
        let read = || -> Option<CertificateState> {
            let (document, authority) = (first(pem)?, first(&self.pem)?);
            let (parsed, authority) = (document.parse_x509().ok()?, authority.parse_x509().ok()?);
            let signed = parsed.issuer() == authority.subject()
                && key_of_issuer(&parsed).is_none_or(|of| key_of_subject(&authority).is_none_or(|key| of == key))
                && parsed.validity().not_before.timestamp() >= authority.validity().not_before.timestamp();
            let (now, end) = (Timestamp::now().as_second(), parsed.validity().not_after.timestamp());
            let name = Subject::read(parsed.subject()).ok()?.common_name() == leaf.common_name;
            let sans =
                parsed.subject_alternative_name().ok()?.map(|s| s.value.general_names.clone()).unwrap_or_default();
            let has_name = |wanted: &String| sans.iter().any(|s| matches!(s, GeneralName::DNSName(n) if n == wanted));
            let has_address = |wanted: &IpAddr| {
                let bytes = match wanted {
                    IpAddr::V4(a) => a.octets().to_vec(),
                    IpAddr::V6(a) => a.octets().to_vec(),
                };
                sans.iter().any(|s| matches!(s, GeneralName::IPAddress(b) if *b == bytes.as_slice()))
            };
            let named = name && leaf.names.iter().all(has_name) && leaf.addresses.iter().all(has_address);
            Some(if !signed || !named || end <= now {
                CertificateState::Invalid
            } else if end <= now + self.lifetimes.renew_before.as_secs() && end < self.ends {
                CertificateState::ExpiresSoon
            } else {
                CertificateState::Valid
            })
        };
        read().unwrap_or(CertificateState::Invalid)
    }
}

/// Whether a certificate has this public key.
fn has_key(cert_pem: &str, key: &PrivateKey) -> bool {
    let read = || -> Option<bool> { Some(first(cert_pem)?.parse_x509().ok()?.public_key().raw == key.public_key()) };
    read().unwrap_or(false)
}

/// The first certificate of a bundle.
pub(super) fn first(pem: &str) -> Option<Pem> {
    Some(x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?.1)
}

/// Expiry of the first certificate of a bundle, in seconds since 1970.
fn ends(pem: &str) -> Option<i64> {
    Some(first(pem)?.parse_x509().ok()?.validity().not_after.timestamp())
}

/// The PEM blocks of a bundle.
fn certificates(bundle: &str) -> impl Iterator<Item = &str> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    bundle.split_inclusive(END).filter_map(|part| part.find(BEGIN).map(|at| &part[at..]))
}

/// The bundle with a new CA certificate in front, if the first one expires soon. The new one has the same key, subject
/// and start as the old one, so that leaves of either verify with both and nothing else must be reissued. Clients that
/// check the expiry of trust anchors (Go's do) need the new one until the old one expires.
fn renewed_bundle(
    bundle: &str,
    files: AuthorityFiles,
    key_pair: &KeyPair,
    lifetimes: Lifetimes,
) -> Result<Option<String>, rcgen::Error> {
    let now = Timestamp::now().as_second();
    let Some(document) = first(bundle) else { return Ok(None) };
    let Ok(old) = document.parse_x509() else { return Ok(None) };
    let end = old.validity().not_after.timestamp();
    if end > now + lifetimes.authority_renew_before.as_secs() {
        return Ok(None);
    }
    let mut params = authority_params(files.name, lifetimes);
    params.not_before = at(old.validity().not_before.timestamp());
    // By default the serial comes from the key, but serials of a CA must be unique.
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| rcgen::Error::RingUnspecified)?;
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let new = params.self_signed(key_pair)?.pem();
    if !first(&new).is_some_and(|new| new.parse_x509().is_ok_and(|new| can_replace(&new, &old))) {
        if end <= now + lifetimes.renew_before.as_secs() {
            tracing::warn!(
                file = files.cert,
                "CA certificate expires soon and was not created here: renew it with the same key where it came from, and restart windlass"
            );
        }
        return Ok(None);
    }
    tracing::info!(
        file = files.cert,
        "renewed CA certificate with the same key; clients that hold the old one need the new one before it expires"
    );
    let kept = certificates(bundle).filter(|one| ends(one).is_some_and(|end| end > now));
    Ok(Some(kept.fold(new, |bundle, one| format!("{}\n{one}\n", bundle.trim_end()))))
}

/// Whether a new CA certificate verifies exactly what the old one does: the same subject, byte for byte, the same key
/// identifier, self-signed, and no constraints that the new one lacks.
fn can_replace(new: &X509Certificate<'_>, old: &X509Certificate<'_>) -> bool {
    let limited = |e: &x509_parser::extensions::X509Extension<'_>| {
        matches!(e.parsed_extension(), ParsedExtension::NameConstraints(_) | ParsedExtension::ExtendedKeyUsage(_))
            || matches!(e.parsed_extension(), ParsedExtension::BasicConstraints(b) if b.path_len_constraint.is_some())
    };
    new.subject().as_raw() == old.subject().as_raw()
        && old.issuer().as_raw() == old.subject().as_raw()
        && key_of_subject(new) == key_of_subject(old)
        && !old.extensions().iter().any(limited)
}

/// The authority key identifier, which distinguishes CAs of the same subject.
fn key_of_issuer(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|key| key.0.to_vec()),
        _ => None,
    })
}

pub(super) fn key_of_subject(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    })
}

fn authority_params(name: &str, lifetimes: Lifetimes) -> CertificateParams {
    let mut params = params(name, None, lifetimes.authority);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn params(common_name: &str, organisation: Option<&str>, lifetime: SignedDuration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organisation) = organisation {
        name.push(DnType::OrganizationName, organisation);
    }
    params.distinguished_name = name;
    // Tolerates clients whose clocks are behind.
    params.not_before = date(days(-1));
    params.not_after = date(lifetime);
    params
}

fn date(after: SignedDuration) -> time::OffsetDateTime {
    at(Timestamp::now().checked_add(after).unwrap_or(Timestamp::MAX).as_second())
}

fn at(second: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(second).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}
