//! Verifies certificates of API servers. Several servers are behind one API, and the certificate of each has the names
//! of the API, but not always the address at which that server is dialled.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Verifies that a server has a certificate of the cluster's authority for one of several names.
#[derive(Debug)]
pub(super) struct AnyNameVerifier {
    authority: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl AnyNameVerifier {
    /// From authorities in DER. Invalid names are left out.
    ///
    /// # Errors
    /// When no authority is valid.
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

impl ServerCertVerifier for AnyNameVerifier {
    /// The dialled name is verified first, and is the one in an error.
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
