//! Certificates of a running control plane: their use and renewal.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rustls::{ClientConfig, RootCertStore, sign::CertifiedKey};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_identity::{
    pki::{self, ClusterSigner, Pair, Pki},
    service_account_tokens::TokenIssuer,
};
use windlass_kit::{
    private_key::PrivateKey,
    serve::{self, Pems, ServeError},
};

use super::{ClientAuthority, Config, ControlPlane, Error};

/// Interval of checks; certificates are renewed long before they expire.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

impl ControlPlane {
    /// Renews certificates before they expire, until `shutdown`; their users continue without a restart.
    pub(super) async fn renew(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(RENEWAL_CHECK_INTERVAL) => {}
            }
            match self.renew_once() {
                Ok(true) => tracing::info!("renewed certificates that were about to expire"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "failed to renew certificates; retrying in an hour"),
            }
        }
    }

    /// Checks all certificates once; `false` when none was renewed.
    pub(super) fn renew_once(&self) -> Result<bool, Error> {
        let before = self.pki();
        let now = before.renewed(&pki_dir(&self.config), &self.names, self.config.lifetimes)?;
        let certificates = |pki: &Pki| {
            let pairs =
                [&pki.server, &pki.admin, &pki.node, &pki.kubelet, &pki.kubelet_client, &pki.front_proxy_client];
            (pki.ca_pem.clone(), pki.front_proxy_ca_pem.clone(), pairs.map(|pair| pair.cert_pem.clone()))
        };
        if certificates(&before) == certificates(&now) {
            if self.kubeconfigs_are_stale.load(Ordering::Relaxed) {
                self.write_kubeconfigs()?;
            }
            return Ok(false);
        }
        self.server_tls.replace(serving_pems(&self.config, &now))?;
        self.node_tls.replace(pems(&now.kubelet, &now))?;
        self.kubelet.replace(client_tls(&now)?);
        self.extension_clients.set_front_proxy(front_proxy(&now)?);
        *self.pki.write() = Arc::new(now);
        self.kubeconfigs_are_stale.store(true, Ordering::Relaxed);
        let ca_pem = self.ca_pem();
        self.root_ca.send_if_modified(|known| std::mem::replace(known, ca_pem.clone()) != ca_pem);
        self.write_kubeconfigs()?;
        Ok(true)
    }

    pub(super) fn pki(&self) -> Arc<Pki> {
        Arc::clone(&self.pki.read())
    }

    /// Writes the kubeconfigs of the administrator and of the node.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn write_kubeconfigs(&self) -> Result<(), Error> {
        let pki = self.pki();
        for (path, user, pair) in [
            (&pki_dir(&self.config).join("node.kubeconfig"), "node", &pki.node),
            (&self.config.admin_kubeconfig, "admin", &pki.admin),
        ] {
            pki::write_private(path, &self.kubeconfig(user, pair))?;
        }
        pki::share_with_group(&self.config.admin_kubeconfig)?;
        self.kubeconfigs_are_stale.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The cluster's signer of requests, if the CA's key is here.
    #[must_use]
    pub fn signer(&self) -> Option<ClusterSigner> {
        self.pki().renews.then(|| ClusterSigner::new(pki_dir(&self.config)))
    }

    /// Signs tokens of service accounts, as the API server does.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub fn token_issuer(&self) -> Result<TokenIssuer, Error> {
        token_issuer(&self.config, &self.pki())
    }

    /// The CA certificate, with earlier ones that are still valid.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.pki().ca_pem.clone()
    }

    /// The authorities of client certificates, as extension API servers verify them; `None` where there are none.
    pub(super) fn client_ca_pem(&self) -> Option<String> {
        match &self.config.options.client_ca {
            ClientAuthority::Cluster => Some(self.ca_pem()),
            ClientAuthority::Given(pem) => Some(pem.clone()),
            ClientAuthority::None => None,
        }
    }

    /// The certificates by which extension API servers verify this one.
    pub(super) fn front_proxy_ca_pem(&self) -> String {
        self.pki().front_proxy_ca_pem.clone()
    }

    /// The same for those who distribute it and must do so again after a renewal.
    #[must_use]
    pub fn root_ca(&self) -> watch::Receiver<String> {
        self.root_ca.subscribe()
    }

    fn kubeconfig(&self, user: &str, pair: &Pair) -> String {
        let first = self.config.listen.first().map(SocketAddr::ip);
        let host = first.filter(|ip| !ip.is_unspecified()).unwrap_or(self.config.advertise);
        let server = format!("https://{}", SocketAddr::new(host, self.port()));
        pki::kubeconfig(&server, &self.ca_pem(), user, pair)
    }
}

pub(super) fn pki_dir(config: &Config) -> PathBuf {
    config.data_dir.join("pki")
}

pub(super) fn pems(pair: &Pair, pki: &Pki) -> Pems {
    Pems { cert: pair.cert_pem.clone(), key: pair.key_pem.clone(), client_ca: Some(pki.ca_pem.clone()) }
}

/// The certificate of the API itself, and whose clients it knows.
pub(super) fn serving_pems(config: &Config, pki: &Pki) -> Pems {
    let own = pems(config.options.serving.as_ref().unwrap_or(&pki.server), pki);
    match &config.options.client_ca {
        ClientAuthority::Cluster => own,
        ClientAuthority::Given(pem) => Pems { client_ca: Some(pem.clone()), ..own },
        ClientAuthority::None => Pems { client_ca: None, ..own },
    }
}

/// The issuer of service accounts' tokens.
pub(super) fn token_issuer(config: &Config, pki: &Pki) -> Result<TokenIssuer, Error> {
    Ok(match &config.options.service_accounts {
        Some(given) => TokenIssuer::from_pem(&given.key_pem)?.with_names(given.names.clone()),
        None => TokenIssuer::from_pem(&pki.service_accounts.0)?,
    })
}

/// The certificate that extension API servers are shown.
pub(super) fn front_proxy(pki: &Pki) -> Result<CertifiedKey, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::Serve(ServeError::Certificate(e.to_string()));
    let chain = serve::certificates(&pki.front_proxy_client.cert_pem)?;
    let key = PrivateKey::from_pem(&pki.front_proxy_client.key_pem).map_err(|e| wrong(&e))?;
    CertifiedKey::from_der(chain, key.to_der(), &rustls::crypto::ring::default_provider()).map_err(|e| wrong(&e))
}

/// TLS configuration for connections to nodes: their certificates are of our CA, and we present a client certificate.
pub(super) fn client_tls(pki: &Pki) -> Result<ClientConfig, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::Serve(ServeError::Certificate(e.to_string()));
    let mut roots = RootCertStore::empty();
    for certificate in serve::certificates(&pki.ca_pem)? {
        roots.add(certificate).map_err(|e| wrong(&e))?;
    }
    let chain = serve::certificates(&pki.kubelet_client.cert_pem)?;
    let key = PrivateKey::from_pem(&pki.kubelet_client.key_pem).map_err(|e| wrong(&e))?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key.to_der())
        .map_err(|e| wrong(&e))
}
