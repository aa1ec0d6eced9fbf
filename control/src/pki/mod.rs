//! Certificates: one authority, and a leaf for each who needs one. Made once, renewed at start and while it runs.
//!
//! Keys are P-256; files are 0600 in a folder of 0700.

mod authority;
mod files;

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use jiff::SignedDuration;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};

use authority::{Authority, CA_CERT, Leaf, is_in_use};

/// The group that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The name of the API server toward nodes.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// Days that certificates are good for, and before whose end they are renewed.
const AUTHORITY_DAYS: i64 = 3650;
/// Who was given the authority's certificate has so long to take the new one.
const AUTHORITY_RENEW_DAYS: i64 = 730;
const LEAF_DAYS: i64 = 365;
const RENEW_DAYS: i64 = 90;

/// How long certificates are good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// The authority's own.
    pub authority: SignedDuration,
    /// So long before its end it is made anew, with the same key.
    pub authority_renew_before: SignedDuration,
    /// Each of the others; none outlives the authority's.
    pub leaf: SignedDuration,
    /// So long before its end each of them is made anew.
    pub renew_before: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: days(AUTHORITY_DAYS),
            authority_renew_before: days(AUTHORITY_RENEW_DAYS),
            leaf: days(LEAF_DAYS),
            renew_before: days(RENEW_DAYS),
        }
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
    /// The authority's certificate, with earlier ones of the same key behind it as long as they are good.
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

const SA_KEY: &str = "sa.key";

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
