//! The certificates of a cluster, as kubeadm would make them.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

/// The subject of a certificate.
pub(crate) struct Holder<'a> {
    pub(crate) file: &'a str,
    pub(crate) user: &'a str,
    pub(crate) group: Option<&'a str>,
    /// Subject alternative names of a server; empty for a client.
    pub(crate) names: &'a [&'a str],
}

/// The directory of a cluster's certificates and keys.
pub(crate) struct Pki {
    dir: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Pki {
    /// Creates a CA, and the key that signs service account tokens.
    pub(crate) fn new(dir: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&dir)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key_pem = key.serialize_pem();
        let authority = CertifiedIssuer::self_signed(params, key)?;
        let pki = Self { dir, authority };
        pki.keep("ca.key", &key_pem)?;
        pki.keep("ca.crt", &pki.authority.pem())?;
        let accounts = KeyPair::generate()?;
        pki.keep("sa.key", &accounts.serialize_pem())?;
        pki.keep("sa.pub", &accounts.public_key_pem())?;
        Ok(pki)
    }

    /// A file of the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a certificate and its key.
    pub(crate) fn issue(&self, holder: &Holder<'_>) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, holder.user);
        if let Some(group) = holder.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let usage = if holder.names.is_empty() {
            ExtendedKeyUsagePurpose::ClientAuth
        } else {
            ExtendedKeyUsagePurpose::ServerAuth
        };
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        for name in holder.names {
            let name = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into()?),
            };
            params.subject_alt_names.push(name);
        }
        let made = params.signed_by(&key, &self.authority)?;
        self.keep(&format!("{}.key", holder.file), &key.serialize_pem())?;
        self.keep(&format!("{}.crt", holder.file), &made.pem())
    }

    /// A kubeconfig with a client certificate.
    pub(crate) fn kubeconfig(&self, client: &str, server: &str) -> anyhow::Result<PathBuf> {
        let data = |name: &str| fs::read(self.file(name)).map(|b| base64::engine::general_purpose::STANDARD.encode(b));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")?}}],
            "users": [{"name": client, "user": {
                "client-certificate-data": data(&format!("{client}.crt"))?,
                "client-key-data": data(&format!("{client}.key"))?,
            }}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": client}}],
        });
        let name = format!("{client}.kubeconfig");
        self.keep(&name, &config.to_string())?;
        Ok(self.file(&name))
    }

    fn keep(&self, name: &str, content: &str) -> anyhow::Result<()> {
        use std::io::Write as _;
        let path: &Path = &self.file(name);
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(content.as_bytes())?;
        Ok(())
    }
}
