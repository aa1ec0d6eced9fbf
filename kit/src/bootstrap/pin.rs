//! Pins of certificate authorities: the SHA-256 of a public key, as `kubeadm token create --print-join-command` prints
//! it.

use std::{fmt, str::FromStr};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};

const BYTES: usize = 32;

/// The digest of a certificate's SubjectPublicKeyInfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin([u8; BYTES]);

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no pin: sha256: and 64 hexadecimal digits");
        let hex = text.strip_prefix("sha256:").ok_or_else(wrong)?;
        let mut bytes = [0; BYTES];
        if hex.len() != 2 * BYTES || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        for (byte, at) in bytes.iter_mut().zip((0..hex.len()).step_by(2)) {
            *byte = hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Pin {
    /// The pin of a certificate in DER.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let digest = ring::digest::digest(&ring::digest::SHA256, parsed.public_key().raw);
        digest.as_ref().try_into().ok().map(Self)
    }
}

/// Verifies that one of `pins` is that of one of the certificates in `pem`: during a CA rotation there are several of
/// each.
///
/// # Errors
/// The pins of the certificates, where none matches; or why the text has none.
pub fn any_matches(pins: &[Pin], pem: &str) -> Result<(), String> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| format!("the certificate authority cannot be read: {e}"))?;
    let found: Vec<Pin> = certificates.iter().filter_map(|certificate| Pin::of(certificate)).collect();
    if found.is_empty() {
        return Err("there is no certificate of an authority".to_owned());
    }
    if found.iter().any(|pin| pins.contains(pin)) {
        return Ok(());
    }
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    Err(format!("the authority of the API server that answered is {}", found.join(", ")))
}
