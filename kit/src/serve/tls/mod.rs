//! TLS of a server whose certificates may be replaced while it runs.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::RwLock;
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tokio_util::sync::CancellationToken;

use super::{ClientIdentity, ServeError};
use crate::{
    blocking::FILES,
    private_key::PrivateKey,
    subject::{Subject, SubjectError},
};

#[cfg(test)]
mod tests;

/// The certificates of a server, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pems {
    /// Its certificate chain.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// The authorities of client certificates; without them none are requested.
    pub client_ca: Option<String>,
}

impl fmt::Debug for Pems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        f.write_str("Pems")
    }
}

/// See the module. Clones share replaced certificates; open connections keep their own.
#[derive(Clone)]
pub struct Tls {
    current: Arc<RwLock<Current>>,
}

struct Current {
    pems: Pems,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// TLS with optional client certificates.
    ///
    /// # Errors
    /// When a PEM text is invalid.
    pub fn new(pems: Pems) -> Result<Self, ServeError> {
        let config = Arc::new(config(&pems)?);
        Ok(Self { current: Arc::new(RwLock::new(Current { pems, config })) })
    }

    /// Replaces the certificates for new connections; `false` when they are the same.
    ///
    /// # Errors
    /// When they are invalid; nothing is changed then.
    pub fn replace(&self, pems: Pems) -> Result<bool, ServeError> {
        if self.current.read().pems == pems {
            return Ok(false);
        }
        let config = Arc::new(config(&pems)?);
        *self.current.write() = Current { pems, config };
        Ok(true)
    }

    /// When the present certificate expires, in seconds since 1970.
    #[must_use]
    pub fn ends_at(&self) -> Option<i64> {
        ends_at(&self.current.read().pems.cert)
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().config)
    }

    /// Reads the certificates periodically until `shutdown`, on a thread for files. Invalid ones are logged, and the previous
    /// ones stay in use.
    ///
    /// # Errors
    /// Never; the signature is that of the other tasks.
    pub async fn follow(
        self,
        read: impl Fn() -> Result<Pems, String> + Send + Sync + 'static,
        every: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let mut last_error = String::new();
        let read = Arc::new(read);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(every) => {}
            }
            let (tls, read) = (self.clone(), Arc::clone(&read));
            let work = move || read().and_then(|pems| tls.replace(pems).map_err(|e| e.to_string()));
            match FILES.run(work, |lost| lost.to_string()).await {
                Ok(changed) => {
                    last_error.clear();
                    if changed {
                        tracing::info!("serving certificate or client CA changed; new connections use it");
                    }
                }
                // A pair that is being replaced does not match for a moment: logged once, retried.
                Err(reason) if reason != last_error => {
                    tracing::warn!(reason, "changed certificates cannot be used; keeping the previous ones");
                    last_error = reason;
                }
                Err(_) => {}
            }
        }
    }
}

/// When the first certificate of a PEM text expires, in seconds since 1970.
#[must_use]
pub fn ends_at(pem: &str) -> Option<i64> {
    let first = certificates(pem).ok()?.into_iter().next()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&first).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn config(pems: &Pems) -> Result<ServerConfig, ServeError> {
    let wrong = |e: &dyn fmt::Display| ServeError::Certificate(e.to_string());
    let chain = certificates(&pems.cert)?;
    let key = PrivateKey::from_pem(&pems.key).map_err(|e| wrong(&e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = match &pems.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authorities)? {
                roots.add(certificate).map_err(|e| wrong(&e))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .map_err(|e| wrong(&e))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key.to_der())
        .map_err(|e| wrong(&e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates in a PEM text.
///
/// # Errors
/// When it contains anything else.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| ServeError::Certificate(e.to_string()))
}

/// Common name and organisations of a verified certificate; `None` if its subject does not identify a user.
pub fn identity(certificate: &[u8]) -> Option<ClientIdentity> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let refused = |why: &SubjectError| tracing::warn!(%why, "client certificate is not taken for anybody");
    let subject = Subject::read(parsed.subject()).inspect_err(refused).ok()?;
    let name = Some(subject.common_name().to_owned()).filter(|name| !name.is_empty())?;
    let groups = subject.organizations().map(str::to_owned).collect();
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let fingerprint = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let ends_at = Some(parsed.validity().not_after.timestamp());
    Some(ClientIdentity { name, groups, fingerprint, ends_at })
}
