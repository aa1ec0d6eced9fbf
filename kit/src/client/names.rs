//! By which names API servers are known. Several stand behind one API and each certificate names the whole of it, but
//! not always the address under which that server is dialled.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Checks that a server has a certificate of the cluster's authority for one of several names.
#[derive(Debug)]
pub(super) struct AnyName {
    authority: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl AnyName {
    /// Of authorities in DER. Names that are none are left out.
    ///
    /// # Errors
    /// When no authority can be used.
    pub(super) fn new(authorities: &[Vec<u8>], names: &[String]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(CertificateDer::from(authority.clone())).map_err(|e| e.to_string())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let authority = authority.build().map_err(|e| e.to_string())?;
        let names = names.iter().filter_map(|name| ServerName::try_from(name.clone()).ok()).collect();
        Ok(Self { authority, names })
    }
}

impl ServerCertVerifier for AnyName {
    /// The name that was asked for counts first, and is the one that an error tells of.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |name: &ServerName<'_>| {
            self.authority.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        verify(server_name).or_else(|error| self.names.iter().find_map(|name| verify(name).ok()).ok_or(error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}
