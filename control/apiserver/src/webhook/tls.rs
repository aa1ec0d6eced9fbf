//! Certificates of webhooks and extension API servers: what Go's verifier accepts, in Go's words.
//!
//! Many of them are their own authority, which strict verifiers refuse: then a `caBundle` that holds the very certificate
//! vouches for it, as in Go.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use windlass_kit::unverified_tls;
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    prelude::{FromDer as _, ParsedExtension},
    time::ASN1Time,
};

/// The authorities of this machine, which vouch where there is no `caBundle`; the first file that exists counts. Go's list
/// for Linux.
const SYSTEM_ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The configuration of a client of HTTP/1.1 that trusts the certificates of `ca_bundle`, or without one those of this
/// machine.
///
/// # Errors
/// When the bundle has no certificate.
pub(crate) fn client_config(ca_bundle: &[u8]) -> Result<ClientConfig, String> {
    let verifier = Verifier::new(ca_bundle)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The configuration of a client of HTTP/1.1 that accepts any certificate.
pub(crate) fn unverified_config() -> ClientConfig {
    unverified_tls::client_config(ring::default_provider().signature_verification_algorithms.supported_schemes())
}

/// Verifies by a bundle of certificates.
#[derive(Debug)]
struct Verifier {
    /// `None` where no certificate of the bundle can be an authority to a strict verifier.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    bundle: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(ca_bundle: &[u8]) -> Result<Self, String> {
        let bundle = if ca_bundle.iter().all(u8::is_ascii_whitespace) { system_roots() } else { read(ca_bundle)? };
        let mut roots = RootCertStore::empty();
        for certificate in &bundle {
            // What cannot be an authority may still be the certificate itself.
            let _ = roots.add(certificate.clone());
        }
        let provider = Arc::new(ring::default_provider());
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        Ok(Self { authorities: builder.build().ok(), bundle, provider })
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let strict = self.authorities.as_ref().ok_or(unknown);
        let Err(error) = strict.and_then(|all| all.verify_server_cert(certificate, intermediates, name, &[], now))
        else {
            return Ok(());
        };
        if !self.bundle.iter().any(|trusted| trusted.as_ref() == certificate.as_ref()) {
            return Err(error);
        }
        is_valid_at(certificate, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
    }
}

fn read(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect();
    if all.is_empty() {
        Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned())
    } else {
        Ok(all)
    }
}

fn system_roots() -> Vec<CertificateDer<'static>> {
    let found = SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok());
    found.and_then(|pem| read(&pem).ok()).unwrap_or_default()
}

fn is_valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let unreadable = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(unreadable)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let valid = ASN1Time::from_timestamp(seconds).is_ok_and(|at| certificate.validity().is_valid_at(at));
    if valid { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::Expired)) }
}

const UNKNOWN_AUTHORITY: &str = "certificate signed by unknown authority";

/// A refusal in Go's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.verify(end_entity, intermediates, server_name, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => {
                let why = Refused(words(&error, end_entity, &server_name.to_str(), now));
                Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why)))))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The refusal of a certificate, as Go's `crypto/x509` words it. Pure.
fn words(error: &Error, certificate: &CertificateDer<'_>, name: &str, now: UnixTime) -> String {
    const FAILED: &str = "tls: failed to verify certificate: x509: ";
    let Error::InvalidCertificate(why) = error else { return format!("{FAILED}{error}") };
    let parsed = X509Certificate::from_der(certificate).ok().map(|(_, certificate)| certificate);
    let text = match (why, &parsed) {
        (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }, Some(certificate)) => {
            name_mismatch(certificate, name)
        }
        (
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
            Some(certificate),
        ) => out_of_date(certificate, now),
        (CertificateError::UnknownIssuer, _) => UNKNOWN_AUTHORITY.to_owned(),
        (CertificateError::BadSignature, Some(certificate)) => forged(certificate),
        (other, _) => other.to_string(),
    };
    format!("{FAILED}{text}")
}

/// An authority of the right name has signed another certificate.
fn forged(certificate: &X509Certificate<'_>) -> String {
    const RSA: &str = "1.2.840.113549.1.1.";
    let algorithm = certificate.signature_algorithm.algorithm.to_id_string();
    let why = match algorithm.as_str() {
        "1.3.101.112" => "x509: Ed25519 verification failure",
        algorithm if algorithm.starts_with(RSA) => "crypto/rsa: verification error",
        _ => "x509: ECDSA verification failure",
    };
    let issuer = certificate.issuer().iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or("");
    format!(
        "{UNKNOWN_AUTHORITY} (possibly because of {why:?} while trying to verify candidate authority certificate {issuer:?})"
    )
}

fn name_mismatch(certificate: &X509Certificate<'_>, name: &str) -> String {
    let names: Vec<String> =
        certificate.extensions().iter().flat_map(|extension| names_in(extension.parsed_extension())).collect();
    if !names.is_empty() {
        return format!("certificate is valid for {}, not {name}", names.join(", "));
    }
    let common = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    if common.is_some_and(|common| common.contains('.') || common == name) {
        return "certificate relies on legacy Common Name field, use SANs instead".to_owned();
    }
    format!("certificate is not valid for any names, but wanted to match {name}")
}

fn names_in(extension: &ParsedExtension<'_>) -> Vec<String> {
    let ParsedExtension::SubjectAlternativeName(names) = extension else { return Vec::new() };
    let shown = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    };
    names.general_names.iter().filter_map(shown).collect()
}

fn out_of_date(certificate: &X509Certificate<'_>, now: UnixTime) -> String {
    let time = |seconds: i64| jiff::Timestamp::from_second(seconds).map(|at| at.to_string()).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (begin, end) = (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let relation = if now < begin { format!("before {}", time(begin)) } else { format!("after {}", time(end)) };
    format!("certificate has expired or is not yet valid: current time {} is {relation}", time(now))
}
