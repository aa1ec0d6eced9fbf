//! A certificate with its key, and whether it is what the node needs. Pure: time is given as a value.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, pem::Pem};

/// The group of all nodes.
pub(super) const NODES: &str = "system:nodes";

/// What a certificate of the node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To show the API who the node is.
    Client,
    /// To show clients of the node's own API that it is the node.
    Serving,
}

/// What a certificate must be good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What it is for.
    pub purpose: Purpose,
    /// The node's name.
    pub node: String,
    /// Names of the node's own API; none for a client.
    pub names: BTreeSet<String>,
    /// Addresses of the node's own API; none for a client.
    pub addresses: BTreeSet<IpAddr>,
}

impl Wanted {
    /// What shows the API that we are this node.
    #[must_use]
    pub fn client(node: &str) -> Self {
        let (names, addresses) = (BTreeSet::new(), BTreeSet::new());
        Self { purpose: Purpose::Client, node: node.to_owned(), names, addresses }
    }

    /// The name of the user that a node is.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }

    /// The subject and the names of a certificate or of a request for one.
    ///
    /// # Errors
    /// When a name of the node is none that a certificate may have.
    pub(super) fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, NODES);
        subject.push(DnType::CommonName, self.user());
        params.distinguished_name = subject;
        for name in &self.names {
            params.subject_alt_names.push(SanType::DnsName(name.clone().try_into()?));
        }
        params.subject_alt_names.extend(self.addresses.iter().map(|at| SanType::IpAddress(*at)));
        Ok(params)
    }
}

/// A certificate, with those that vouch for it behind it, and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificates, the node's own first.
    pub cert: String,
    /// The key.
    pub key: String,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        f.write_str("Pair")
    }
}

/// When a certificate begins and ends, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// It is good from here.
    pub begins: i64,
    /// It is good until here.
    pub ends: i64,
}

impl Life {
    /// The moment at which this share of the life is over.
    #[must_use]
    pub fn at(self, share: f64) -> i64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "seconds of some years")]
        let lived = ((self.ends - self.begins) as f64 * share) as i64;
        self.begins + lived
    }
}

/// Why a certificate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It is no certificate, or the key is not its own.
    #[error("{0}")]
    Broken(String),
    /// It is over.
    #[error("it ended {0} s ago")]
    Ended(i64),
    /// It has not begun.
    #[error("it begins in {0} s; is this machine's clock right?")]
    NotYet(i64),
    /// It is another's.
    #[error("it is for {found}, not for {wanted}")]
    Another {
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// It lacks names or addresses of the node.
    #[error("it does not name {0}")]
    Lacks(String),
}

fn broken(what: &str) -> impl FnOnce(&dyn fmt::Display) -> Unfit {
    let what = what.to_owned();
    move |error| Unfit::Broken(format!("{what}: {error}"))
}

impl Pair {
    /// Of one text that holds certificates and a key, in any order.
    ///
    /// # Errors
    /// When either is missing.
    pub fn of(text: &str) -> Result<Self, Unfit> {
        let (mut cert, mut key) = (String::new(), String::new());
        for section in sections(text) {
            if section.contains("PRIVATE KEY-----") { key.push_str(&section) } else { cert.push_str(&section) }
        }
        if cert.is_empty() || key.is_empty() {
            return Err(Unfit::Broken("it does not hold a certificate and its private key".to_owned()));
        }
        Ok(Self { cert, key })
    }

    /// One text of both, as upstream writes it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n", self.cert.trim_end(), self.key.trim_end())
    }

    /// How long it is good.
    ///
    /// # Errors
    /// When it is no certificate.
    pub fn life(&self) -> Result<Life, Unfit> {
        let pem = first(&self.cert)?;
        Ok(life(&parse(&pem)?))
    }

    /// Whose certificate it is, if it can be read.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let pem = first(&self.cert).ok()?;
        common_name(&parse(&pem).ok()?)
    }

    /// Whether it is what is wanted, at a moment in seconds since 1970. What it has beyond that is no harm.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, wanted: &Wanted, now: i64) -> Result<Life, Unfit> {
        let pem = first(&self.cert)?;
        let certificate = parse(&pem)?;
        let key = KeyPair::from_pem(&self.key).map_err(|e| broken("its key cannot be used")(&e))?;
        if key.der_bytes() != certificate.public_key().subject_public_key.data.as_ref() {
            return Err(Unfit::Broken("the key is not the certificate's".to_owned()));
        }
        let found = common_name(&certificate).unwrap_or_default();
        let in_group = certificate.subject().iter_organization().any(|o| o.as_str() == Ok(NODES));
        if found != wanted.user() || !in_group {
            return Err(Unfit::Another {
                found: format!("{found:?}"),
                wanted: format!("{:?} of {NODES}", wanted.user()),
            });
        }
        let life = life(&certificate);
        if now > life.ends {
            return Err(Unfit::Ended(now - life.ends));
        }
        if now < life.begins {
            return Err(Unfit::NotYet(life.begins - now));
        }
        let (names, addresses) = alternative_names(&certificate);
        let lacking: Vec<String> = wanted
            .names
            .difference(&names)
            .cloned()
            .chain(wanted.addresses.difference(&addresses).map(ToString::to_string))
            .collect();
        if !lacking.is_empty() {
            return Err(Unfit::Lacks(lacking.join(", ")));
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

fn first(cert: &str) -> Result<Pem, Unfit> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(cert.as_bytes()).map_err(|e| broken("it is not PEM")(&e))?;
    Ok(pem)
}

fn parse(pem: &Pem) -> Result<X509Certificate<'_>, Unfit> {
    pem.parse_x509().map_err(|e| broken("it is no certificate")(&e))
}

fn life(certificate: &X509Certificate<'_>) -> Life {
    let validity = certificate.validity();
    Life { begins: validity.not_before.timestamp(), ends: validity.not_after.timestamp() }
}

fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
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
