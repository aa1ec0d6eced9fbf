//! Certificates: one authority, and a leaf for each who needs one. Made once, renewed at start and while it runs.
//!
//! Keys are P-256; files are 0600 in a folder of 0700.

mod files;

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use x509_parser::{extensions::ParsedExtension, prelude::X509Certificate};

/// The group that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The name of the API server toward nodes.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// Days that certificates are good for, and before whose end they are renewed.
const AUTHORITY_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 365;
const RENEW_DAYS: i64 = 90;

/// How long certificates are good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Each but the authority's own.
    pub leaf: SignedDuration,
    /// Before its end each is made anew.
    pub renew_before: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { leaf: days(LEAF_DAYS), renew_before: days(RENEW_DAYS) }
    }
}

const fn days(number: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * number)
}

/// Why certificates could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("the certificate file {path} could not be {attempt}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} cannot be used: {reason}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("a certificate for {name} could not be made: {reason}")]
    Make {
        /// For whom.
        name: String,
        /// Why not.
        reason: String,
    },
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.write_str("Pair")
    }
}

/// All that the control plane and its node need.
#[derive(Debug, Clone)]
pub struct Pki {
    /// The authority's certificate.
    pub ca_pem: String,
    /// The API server's.
    pub server: Pair,
    /// The administrator's.
    pub admin: Pair,
    /// The node's, as a client.
    pub node: Pair,
    /// The node's own API's.
    pub kubelet: Pair,
    /// The API server's toward nodes.
    pub kubelet_client: Pair,
    /// The key that signs the tokens of service accounts, in PEM.
    pub service_accounts: ServiceAccountKey,
    /// The authority's key is there, so that certificates can be made anew before they end.
    pub renews: bool,
}

/// A private key, in PEM, that no log shows.
#[derive(Clone)]
pub struct ServiceAccountKey(pub String);

impl std::fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceAccountKey")
    }
}

/// What certificates are for.
#[derive(Debug, Clone)]
pub struct Names {
    /// The node's name.
    pub node: String,
    /// Addresses under which the server is reached.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the node's own API.
    pub node_addresses: Vec<IpAddr>,
    /// Domain of the cluster.
    pub domain: String,
}

struct Leaf<'a> {
    file: &'a str,
    common_name: String,
    organisation: Option<&'a str>,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    usage: ExtendedKeyUsagePurpose,
}

impl Pki {
    /// Reads the certificates in `dir`, and makes those that are missing, soon over, or for other names.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn open(dir: &Path, names: &Names, lifetimes: Lifetimes) -> Result<Self, Error> {
        files::make_dir(dir)?;
        let service_accounts = ServiceAccountKey::open(dir)?;
        let authority = Authority::open(dir, lifetimes)?;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let client = |file, common_name: String, organisation| Leaf {
            file,
            common_name,
            organisation: Some(organisation),
            names: Vec::new(),
            addresses: Vec::new(),
            usage: usage.clone(),
        };
        let domain = &names.domain;
        let server_names =
            ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
        let mut server_names: Vec<String> = server_names.into();
        server_names.push(format!("kubernetes.default.svc.{domain}"));
        server_names.push(names.node.clone());
        let server = Leaf {
            file: "apiserver",
            common_name: "kube-apiserver".to_owned(),
            organisation: None,
            names: server_names,
            addresses: names.addresses.clone(),
            usage: ExtendedKeyUsagePurpose::ServerAuth,
        };
        let kubelet = Leaf {
            file: "kubelet",
            common_name: format!("system:node:{}", names.node),
            organisation: Some("system:nodes"),
            names: vec![names.node.clone()],
            addresses: names.node_addresses.clone(),
            usage: ExtendedKeyUsagePurpose::ServerAuth,
        };
        let leaf = |leaf: &Leaf<'_>| authority.leaf(dir, leaf);
        Ok(Self {
            server: leaf(&server)?,
            admin: leaf(&client("admin", "kubernetes-admin".to_owned(), MASTERS))?,
            node: leaf(&client("node", format!("system:node:{}", names.node), "system:nodes"))?,
            kubelet: leaf(&kubelet)?,
            kubelet_client: leaf(&client("apiserver-kubelet-client", KUBELET_CLIENT.to_owned(), MASTERS))?,
            service_accounts,
            renews: authority.issuer.is_some(),
            ca_pem: authority.pem,
        })
    }

    /// The same a while later, in a process that has told others of this authority and of this key of tokens.
    ///
    /// # Errors
    /// Says which file and why; nothing was changed if it is the authority or the key of tokens that is gone or another.
    pub fn renewed(&self, dir: &Path, names: &Names, lifetimes: Lifetimes) -> Result<Self, Error> {
        for (file, used) in [(CA_CERT, &self.ca_pem), (SA_KEY, &self.service_accounts.0)] {
            let path = dir.join(file);
            let reason = match files::read(&path)? {
                Some(found) if found == *used => continue,
                Some(_) => {
                    "it is another one than at the start of this process, which goes on with the old one; start windlass again to use it"
                }
                None => {
                    "it is gone; this process goes on with what it has read, but the next one will not start: put it back"
                }
            };
            return Err(Error::Content { path, reason: reason.to_owned() });
        }
        Self::open(dir, names, lifetimes)
    }
}

const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const SA_KEY: &str = "sa.key";

/// Whether a folder has been in use: a certificate of the API server is in it, which is made after the authority.
fn is_in_use(dir: &Path) -> Result<bool, Error> {
    Ok(files::read(&dir.join("apiserver.crt"))?.is_some())
}

impl ServiceAccountKey {
    /// Made once, since every token that is out there was signed with it.
    fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(SA_KEY);
        if let Some(pem) = files::read_key(&path)? {
            return Ok(Self(pem));
        }
        if is_in_use(dir)? {
            let reason = "it is missing, and every service account's token was signed with it; put it back, or give up all tokens \
                          that are out there and make another: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out sa.key";
            return Err(Error::Content { path, reason: reason.to_owned() });
        }
        let make = |e: rcgen::Error| Error::Make { name: "service accounts' tokens".to_owned(), reason: e.to_string() };
        let pem = KeyPair::generate().map_err(make)?.serialize_pem();
        files::write(&path, &pem)?;
        Ok(Self(pem))
    }
}

struct Authority {
    pem: String,
    /// Not there while the authority's key is kept elsewhere.
    issuer: Option<Issuer<'static, KeyPair>>,
    lifetimes: Lifetimes,
}

/// How a certificate that is there stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    /// It can be used and ends soon.
    EndsSoon,
    /// It has ended, or is for other names, or of another authority.
    Unusable,
}

impl Authority {
    fn open(dir: &Path, lifetimes: Lifetimes) -> Result<Self, Error> {
        let (cert, key) = (dir.join(CA_CERT), dir.join(CA_KEY));
        let make = |e: &dyn std::fmt::Display| Error::Make {
            name: "the cluster's authority".to_owned(),
            reason: e.to_string(),
        };
        let wrong =
            |path: &Path, e: &dyn std::fmt::Display| Error::Content { path: path.to_owned(), reason: e.to_string() };
        match (files::read(&cert)?, files::read_key(&key)?) {
            (Some(pem), Some(key_pem)) => {
                let key_pair = KeyPair::from_pem(&key_pem).map_err(|e| wrong(&key, &e))?;
                if !is_of(&pem, &key_pair) {
                    return Err(wrong(
                        &key,
                        &"it is not the key of ca.crt beside it; put back the two that belong together",
                    ));
                }
                let issuer = Issuer::from_ca_cert_pem(&pem, key_pair).map_err(|e| wrong(&cert, &e))?;
                return Ok(Self { pem, issuer: Some(issuer), lifetimes });
            }
            (Some(pem), None) => {
                if !is_in_use(dir)? {
                    return Err(wrong(
                        &key,
                        &"it is missing, and no certificate can be made without it; put it beside its ca.crt",
                    ));
                }
                return Ok(Self { pem, issuer: None, lifetimes });
            }
            (None, Some(_)) if is_in_use(dir)? => {
                let reason = "it is missing, and ca.key is there; put it back: each kubeconfig has it as certificate-authority-data";
                return Err(wrong(&cert, &reason));
            }
            (None, None) if is_in_use(dir)? => {
                let reason = "it is missing with its key, and certificates of it are in use; put both back, or move the whole folder \
                              away to begin anew: every kubeconfig and every node then needs new certificates";
                return Err(wrong(&cert, &reason));
            }
            // The first start, or one that a crash has cut short.
            (None, _) => {}
        }
        let key_pair = KeyPair::generate().map_err(|e| make(&e))?;
        let mut params = params("windlass", None, days(AUTHORITY_DAYS));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key_pem = key_pair.serialize_pem();
        let made = CertifiedIssuer::self_signed(params, key_pair).map_err(|e| make(&e))?;
        let pem = made.pem();
        // The key first: a certificate without it would be useless.
        files::write(&key, &key_pem)?;
        files::write(&cert, &pem)?;
        let key_pair = KeyPair::from_pem(&key_pem).map_err(|e| make(&e))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key_pair).map_err(|e| make(&e))?;
        Ok(Self { pem, issuer: Some(issuer), lifetimes })
    }

    fn leaf(&self, dir: &Path, leaf: &Leaf<'_>) -> Result<Pair, Error> {
        let (cert, key) = (dir.join(format!("{}.crt", leaf.file)), dir.join(format!("{}.key", leaf.file)));
        let found = files::read(&cert)?.zip(files::read_key(&key)?);
        let found = found.map(|(cert_pem, key_pem)| (self.standing(&cert_pem, leaf), Pair { cert_pem, key_pem }));
        let issuer = match (found, &self.issuer) {
            (Some((Standing::Good, pair)), _) => return Ok(pair),
            (_, Some(issuer)) => issuer,
            (Some((Standing::EndsSoon, pair)), None) => {
                tracing::warn!(path = %cert.display(), "this certificate ends soon and cannot be made anew without ca.key; put that beside ca.crt");
                return Ok(pair);
            }
            (Some((Standing::Unusable, _)) | None, None) => {
                let reason = "it must be made anew (it is missing, has ended or is for other names), and ca.key is not there; put that beside ca.crt";
                return Err(Error::Content { path: cert, reason: reason.to_owned() });
            }
        };
        let make = |e: &dyn std::fmt::Display| Error::Make { name: leaf.common_name.clone(), reason: e.to_string() };
        let key_pair = KeyPair::generate().map_err(|e| make(&e))?;
        let mut params = params(&leaf.common_name, leaf.organisation, self.lifetimes.leaf);
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

    /// Whether it is signed by this authority, far from its end, and for all the names that are wanted.
    fn standing(&self, pem: &str, leaf: &Leaf<'_>) -> Standing {
        let read = || -> Option<Standing> {
            let (_, document) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
            let parsed = document.parse_x509().ok()?;
            let (_, authority) = x509_parser::pem::parse_x509_pem(self.pem.as_bytes()).ok()?;
            let authority = authority.parse_x509().ok()?;
            let signed = parsed.issuer() == authority.subject()
                && key_of_issuer(&parsed).is_none_or(|of| key_of_subject(&authority).is_none_or(|key| of == key))
                && parsed.validity().not_before.timestamp() >= authority.validity().not_before.timestamp();
            let (now, end) = (Timestamp::now().as_second(), parsed.validity().not_after.timestamp());
            let name = parsed.subject().iter_common_name().next()?.as_str().ok()? == leaf.common_name;
            let sans =
                parsed.subject_alternative_name().ok()?.map(|s| s.value.general_names.clone()).unwrap_or_default();
            let has_name = |wanted: &String| {
                sans.iter().any(|s| matches!(s, x509_parser::extensions::GeneralName::DNSName(n) if n == wanted))
            };
            let has_address = |wanted: &IpAddr| {
                let bytes = match wanted {
                    IpAddr::V4(a) => a.octets().to_vec(),
                    IpAddr::V6(a) => a.octets().to_vec(),
                };
                sans.iter()
                    .any(|s| matches!(s, x509_parser::extensions::GeneralName::IPAddress(b) if *b == bytes.as_slice()))
            };
            let named = name && leaf.names.iter().all(has_name) && leaf.addresses.iter().all(has_address);
            Some(if !signed || !named || end <= now {
                Standing::Unusable
            } else if end <= now + self.lifetimes.renew_before.as_secs() {
                Standing::EndsSoon
            } else {
                Standing::Good
            })
        };
        read().unwrap_or(Standing::Unusable)
    }
}

/// Whether a certificate is of this key.
fn is_of(cert_pem: &str, key: &KeyPair) -> bool {
    let read = || -> Option<bool> {
        let (_, document) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).ok()?;
        Some(document.parse_x509().ok()?.public_key().raw == key.subject_public_key_info().as_slice())
    };
    read().unwrap_or(false)
}

/// The name of the key that signed a certificate, which tells authorities of the same name apart.
fn key_of_issuer(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|key| key.0.to_vec()),
        _ => None,
    })
}

fn key_of_subject(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    })
}

fn params(common_name: &str, organisation: Option<&str>, lifetime: SignedDuration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organisation) = organisation {
        name.push(DnType::OrganizationName, organisation);
    }
    params.distinguished_name = name;
    // A clock that is a little behind must not refuse what was made just now.
    params.not_before = date(days(-1));
    params.not_after = date(lifetime);
    params
}

fn date(after: SignedDuration) -> time::OffsetDateTime {
    let at = Timestamp::now().checked_add(after).unwrap_or(Timestamp::MAX);
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

/// A kubeconfig with everything inside.
#[must_use]
pub fn kubeconfig(server: &str, ca_pem: &str, user: &str, pair: &Pair) -> String {
    let packed = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: windlass\n  cluster:\n    server: {server}\n    certificate-authority-data: {}\n\
         users:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n\
         contexts:\n- name: windlass\n  context:\n    cluster: windlass\n    user: {user}\ncurrent-context: windlass\n",
        packed(ca_pem),
        packed(&pair.cert_pem),
        packed(&pair.key_pem)
    )
}

/// Writes a private file whole or not at all; unchanged content is left alone.
///
/// # Errors
/// Says which file and why.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|source| Error::File {
            path: parent.to_owned(),
            attempt: "made",
            source,
        })?;
    }
    if files::read(path)?.as_deref() == Some(text) {
        // It may be shared with a group.
        files::keep_private(path, 0o640);
        return Ok(());
    }
    files::write(path, text)
}

/// Lets the group of a private file read it, if its folder gives files its own group (the set-group-ID bit): the folder of a
/// package does, so that an administrator says who rules the cluster by who is in that group.
///
/// # Errors
/// Says which file and why.
pub fn share_with_group(path: &Path) -> Result<(), Error> {
    files::share_with_group(path)
}
