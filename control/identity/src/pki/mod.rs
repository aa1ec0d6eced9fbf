//! The cluster's PKI: a CA with leaf certificates for servers and clients, and another one for the client certificate of the
//! API server toward extension API servers. Created once, renewed at start and while running.
//!
//! Keys are P-256; files have mode 0600 in a directory of mode 0700.

mod authority;
mod der;
mod files;
mod request;
mod signer;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod unusual;

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use jiff::SignedDuration;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use windlass_kit::atomic_file;

use authority::{Authority, CA_CERT, CLUSTER, FRONT_PROXY, Leaf, is_in_use};
pub use request::CertificateRequest;
pub use signer::ClusterSigner;

/// The group of administrators, which has all rights.
pub const MASTERS_GROUP: &str = "system:masters";
/// The API server's user name toward nodes.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The API server's user name toward extension API servers (kubeadm's).
pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";
/// The signer of certificates for clients of the API.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The signer of certificates for nodes as clients of the API.
pub const KUBELET_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of certificates for the API of nodes.
pub const KUBELET_SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Lifetimes and renewal times of certificates, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Time for clients to adopt a renewed CA certificate.
const AUTHORITY_RENEW_DAYS: i64 = 730;
const LEAF_DAYS: i64 = 365;
const RENEW_DAYS: i64 = 90;

/// Lifetimes and renewal times of certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime of the CA certificate.
    pub authority: SignedDuration,
    /// How long before its expiry the CA certificate is renewed, with the same key.
    pub authority_renew_before: SignedDuration,
    /// Lifetime of leaf certificates; none outlives the CA certificate.
    pub leaf: SignedDuration,
    /// How long before their expiry leaf certificates are renewed.
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

/// Why the PKI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("the certificate file {path} could not be {attempt}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file has unexpected content.
    #[error("{path} cannot be used: {reason}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("a certificate for {name} could not be made: {reason}")]
    Make {
        /// The subject.
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

/// The certificates of the control plane and its node.
#[derive(Debug, Clone)]
pub struct Pki {
    /// The CA bundle: the current certificate, followed by earlier valid ones of the same key.
    pub ca_pem: String,
    /// The API server's serving certificate.
    pub server: Pair,
    /// The administrator's client certificate.
    pub admin: Pair,
    /// The node's client certificate.
    pub node: Pair,
    /// The serving certificate of the node's API.
    pub kubelet: Pair,
    /// The API server's client certificate for nodes.
    pub kubelet_client: Pair,
    /// The CA bundle by which extension API servers verify the API server, which passes requests on to them.
    pub front_proxy_ca_pem: String,
    /// The API server's client certificate for extension API servers.
    pub front_proxy_client: Pair,
    /// The signing key of service account tokens, in PEM.
    pub service_accounts: ServiceAccountKey,
    /// Whether the CA key exists, so that certificates can be renewed.
    pub renews: bool,
}

/// A private key in PEM; its debug output has no content.
#[derive(Clone)]
pub struct ServiceAccountKey(pub String);

impl std::fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceAccountKey")
    }
}

/// The names and addresses in certificates.
#[derive(Debug, Clone)]
pub struct Names {
    /// The node's name.
    pub node: String,
    /// Addresses of the API server.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the node's own API.
    pub node_addresses: Vec<IpAddr>,
    /// The cluster's DNS domain.
    pub domain: String,
}

impl Pki {
    /// Reads the certificates in `dir`, and issues those that are missing, about to expire, or for other names.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn open(dir: &Path, names: &Names, lifetimes: Lifetimes) -> Result<Self, Error> {
        files::make_dir(dir)?;
        let service_accounts = ServiceAccountKey::open(dir)?;
        let authority = Authority::open(dir, CLUSTER, lifetimes)?;
        let front_proxy = Authority::open(dir, FRONT_PROXY, lifetimes)?;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let client = |file, common_name: String, organisation| Leaf {
            file,
            common_name,
            organisation,
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
            admin: leaf(&client("admin", "kubernetes-admin".to_owned(), Some(MASTERS_GROUP)))?,
            node: leaf(&client("node", format!("system:node:{}", names.node), Some("system:nodes")))?,
            kubelet: leaf(&kubelet)?,
            kubelet_client: leaf(&client("apiserver-kubelet-client", KUBELET_CLIENT.to_owned(), Some(MASTERS_GROUP)))?,
            front_proxy_client: front_proxy
                .leaf(dir, &client(FRONT_PROXY_CLIENT, FRONT_PROXY_CLIENT.to_owned(), None))?,
            front_proxy_ca_pem: front_proxy.pem,
            service_accounts,
            renews: authority.issuer.is_some(),
            ca_pem: authority.pem,
        })
    }

    /// Renews in a running process, whose CA and signing key other components use already.
    ///
    /// # Errors
    /// Names the file and the reason; nothing is changed if the CA or the signing key is missing or another one.
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
    /// Created once: every issued token is signed with it.
    fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(SA_KEY);
        if let Some(pem) = files::read_key(&path)? {
            return Ok(Self(pem));
        }
        if is_in_use(dir, CLUSTER)? {
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

/// A kubeconfig with embedded credentials.
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

/// Writes a private file atomically; unchanged content is not rewritten.
///
/// # Errors
/// Says which file and why.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        atomic_file::make_dir(parent, 0o755).map_err(|source| Error::File {
            path: parent.to_owned(),
            attempt: "made",
            source,
        })?;
    }
    if files::read(path)?.as_deref() == Some(text) {
        // The file may be shared with a group.
        files::restrict_permissions(path, 0o640);
        // An earlier attempt may have ended before its name was on disk.
        return files::sync_name(path);
    }
    files::write(path, text)
}

/// Lets the group of a private file read it, if its directory has the set-group-ID bit. The packages' directory has it,
/// so that an administrator grants access to the cluster by group membership.
///
/// # Errors
/// Says which file and why.
pub fn share_with_group(path: &Path) -> Result<(), Error> {
    files::share_with_group(path)
}
