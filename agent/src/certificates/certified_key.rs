//! A certificate with its private key, and its validation against what the node needs. Pure: time is passed as a value.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use rcgen::{CertificateParams, DistinguishedName, DnType, SanType};
use windlass_kit::{private_key::PrivateKey, subject::Subject};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, pem::Pem};

/// The group of all nodes.
pub(super) const NODES_GROUP: &str = "system:nodes";

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Authenticates the node to the API.
    Client,
    /// Authenticates the node's API to its clients.
    Serving,
}

/// What a certificate must certify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateTemplate {
    /// Its purpose.
    pub purpose: Purpose,
    /// The node's name.
    pub node: String,
    /// DNS names of the node's API; empty for a client.
    pub names: BTreeSet<String>,
    /// IP addresses of the node's API; empty for a client.
    pub addresses: BTreeSet<IpAddr>,
}

impl CertificateTemplate {
    /// The template of the client certificate of a node.
    #[must_use]
    pub fn client(node: &str) -> Self {
        let (names, addresses) = (BTreeSet::new(), BTreeSet::new());
        Self { purpose: Purpose::Client, node: node.to_owned(), names, addresses }
    }

    /// The user name of the node.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }

    /// Subject and alternative names, for a certificate or a request.
    ///
    /// # Errors
    /// When a name is not valid in a certificate.
    pub(super) fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, NODES_GROUP);
        subject.push(DnType::CommonName, self.user());
        params.distinguished_name = subject;
        for name in &self.names {
            params.subject_alt_names.push(SanType::DnsName(name.clone().try_into()?));
        }
        params.subject_alt_names.extend(self.addresses.iter().map(|at| SanType::IpAddress(*at)));
        Ok(params)
    }
}

/// A certificate chain and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertifiedKey {
    /// The chain, the node's certificate first.
    pub cert: String,
    /// The private key.
    pub key: String,
}

impl fmt::Debug for CertifiedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        f.write_str("CertifiedKey")
    }
}

/// Validity of a certificate, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Validity {
    /// Not valid before.
    pub not_before: i64,
    /// Not valid after.
    pub not_after: i64,
}

impl Validity {
    /// The time at which this fraction of the validity has passed.
    #[must_use]
    pub fn at(self, fraction: f64) -> i64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "seconds of some years")]
        let elapsed = ((self.not_after - self.not_before) as f64 * fraction) as i64;
        self.not_before + elapsed
    }
}

/// Why a certificate is not valid for a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It cannot be parsed, or the key does not match.
    #[error("{0}")]
    Malformed(String),
    /// It has expired.
    #[error("it expired {0} s ago")]
    Expired(i64),
    /// It is not valid yet.
    #[error("it is not valid for another {0} s; is this machine's clock right?")]
    NotYetValid(i64),
    /// It has another subject.
    #[error("it is for {found}, not for {wanted}")]
    WrongSubject {
        /// Its subject.
        found: String,
        /// The expected subject.
        wanted: String,
    },
    /// It misses names or addresses of the node.
    #[error("it does not name {0}")]
    MissingNames(String),
}

fn malformed(what: &str) -> impl FnOnce(&dyn fmt::Display) -> CertificateError {
    let what = what.to_owned();
    move |error| CertificateError::Malformed(format!("{what}: {error}"))
}

impl CertifiedKey {
    /// Parses a PEM text with certificates and a key, in any order.
    ///
    /// # Errors
    /// When either is missing.
    pub fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let (mut cert, mut key) = (String::new(), String::new());
        for section in sections(text) {
            if section.contains("PRIVATE KEY-----") {
                key.push_str(&section);
            } else if section.starts_with("-----BEGIN CERTIFICATE-----") {
                // Not what openssl puts in front of a key: its parameters.
                cert.push_str(&section);
            }
        }
        if cert.is_empty() || key.is_empty() {
            return Err(CertificateError::Malformed("it does not hold a certificate and its private key".to_owned()));
        }
        Ok(Self { cert, key })
    }

    /// Both as one PEM text, as upstream writes it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n", self.cert.trim_end(), self.key.trim_end())
    }

    /// Its validity.
    ///
    /// # Errors
    /// When it cannot be parsed.
    pub fn validity(&self) -> Result<Validity, CertificateError> {
        let pem = first(&self.cert)?;
        Ok(validity(&parse(&pem)?))
    }

    /// The user of its subject, if it can be parsed.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let pem = first(&self.cert).ok()?;
        let subject = Subject::read(parse(&pem).ok()?.subject()).ok()?;
        Some(subject.common_name().to_owned()).filter(|name| !name.is_empty())
    }

    /// Validates it against a template, at a time in seconds since 1970. Additional names are fine.
    ///
    /// # Errors
    /// Why it is not valid.
    pub fn check(&self, wanted: &CertificateTemplate, now: i64) -> Result<Validity, CertificateError> {
        let pem = first(&self.cert)?;
        let certificate = parse(&pem)?;
        let key = PrivateKey::from_pem(&self.key).map_err(|e| malformed("its key cannot be used")(&e))?;
        if key.public_key() != certificate.public_key().raw {
            return Err(CertificateError::Malformed("the key is not the certificate's".to_owned()));
        }
        let subject = Subject::read(certificate.subject()).map_err(|e| malformed("its subject cannot be used")(&e))?;
        let in_group = subject.organizations().any(|group| group == NODES_GROUP);
        if subject.common_name() != wanted.user() || !in_group {
            return Err(CertificateError::WrongSubject {
                found: format!("{:?}", subject.common_name()),
                wanted: format!("{:?} of {NODES_GROUP}", wanted.user()),
            });
        }
        let life = validity(&certificate);
        if now > life.not_after {
            return Err(CertificateError::Expired(now - life.not_after));
        }
        if now < life.not_before {
            return Err(CertificateError::NotYetValid(life.not_before - now));
        }
        let (names, addresses) = alternative_names(&certificate);
        let missing: Vec<String> = wanted
            .names
            .difference(&names)
            .cloned()
            .chain(wanted.addresses.difference(&addresses).map(ToString::to_string))
            .collect();
        if !missing.is_empty() {
            return Err(CertificateError::MissingNames(missing.join(", ")));
        }
        Ok(life)
    }
}

/// The sections of a PEM text, each with its first and last line.
fn sections(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        if line.starts_with("-----BEGIN ") {
            open = Some(String::new());
        }
        if let Some(section) = &mut open {
            section.push_str(line);
            section.push('\n');
        }
        if line.starts_with("-----END ") {
            all.extend(open.take());
        }
    }
    all
}

fn first(cert: &str) -> Result<Pem, CertificateError> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(cert.as_bytes()).map_err(|e| malformed("it is not PEM")(&e))?;
    Ok(pem)
}

fn parse(pem: &Pem) -> Result<X509Certificate<'_>, CertificateError> {
    pem.parse_x509().map_err(|e| malformed("it is no certificate")(&e))
}

fn validity(certificate: &X509Certificate<'_>) -> Validity {
    let validity = certificate.validity();
    Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() }
}

fn alternative_names(certificate: &X509Certificate<'_>) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    let all = certificate.subject_alternative_name().ok().flatten();
    for name in all.iter().flat_map(|all| &all.value.general_names) {
        match name {
            GeneralName::DNSName(name) => drop(names.insert((*name).to_owned())),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                addresses.extend(v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)));
            }
            _ => {}
        }
    }
    (names, addresses)
}
