//! Private keys of any origin: PKCS#8, and the older forms of RSA (PKCS#1) and of elliptic curves (SEC1). Go programs,
//! kubelet and kubeadm among them, still write the older ones, and openssl all three. All keys are read here, so that
//! none of them works in one place and fails in another. Pure.

use rustls_pki_types::{
    PrivateKeyDer, PrivatePkcs8KeyDer,
    pem::{self, PemObject as _},
};

use crate::der::{self, INTEGER, OBJECT_ID, OCTET_STRING, SEQUENCE, tagged};

/// The identifier of RSA keys.
const RSA: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];
/// The identifier of keys on elliptic curves.
const ELLIPTIC: &[u64] = &[1, 2, 840, 10_045, 2, 1];
/// Curves, by the bytes of a private key, for keys that do not name theirs.
const CURVES: [(usize, &[u64]); 2] = [(32, &[1, 2, 840, 10_045, 3, 1, 7]), (48, &[1, 3, 132, 0, 34])];
/// NULL, the parameter of RSA keys.
const NULL: [u8; 2] = [0x05, 0];
/// The tag of a curve in the SEC1 form.
const PARAMETERS: u8 = 0xa0;

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text holds no private key.
    #[error(
        "there is no private key in it (a section that begins with -----BEGIN PRIVATE KEY-----, -----BEGIN EC PRIVATE KEY----- or -----BEGIN RSA PRIVATE KEY-----)"
    )]
    Missing,
    /// It needs a password.
    #[error(
        "the private key is encrypted, and nobody is there to be asked for its password; decrypt it with: openssl pkey -in FILE -out FILE"
    )]
    Encrypted,
    /// It cannot be read.
    #[error("the private key cannot be read: {0}")]
    Malformed(String),
    /// It can be read, but not be used to sign.
    #[error(
        "the private key is of a kind that cannot be used here ({0}); P-256, P-384, Ed25519 and RSA of at least 2048 bits can"
    )]
    Unsupported(String),
}

/// A private key that can sign.
pub struct PrivateKey {
    pkcs8: PrivatePkcs8KeyDer<'static>,
    /// The public key, as certificates have it.
    public: Vec<u8>,
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// The first private key of a PEM text, which may hold other things, too.
    ///
    /// # Errors
    /// When it holds no private key, or one that cannot be used.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let encrypted = || text.contains("ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED");
        let read = match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
            Ok(read) => read,
            Err(_) if encrypted() => return Err(KeyError::Encrypted),
            Err(pem::Error::NoItemsFound) => return Err(KeyError::Missing),
            Err(error) => return Err(KeyError::Malformed(error.to_string())),
        };
        let pkcs8 = match &read {
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
            PrivateKeyDer::Pkcs1(key) => wrapped(&[&der::object_id(RSA), &NULL], key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => {
                let key = key.secret_sec1_der();
                wrapped(&[&der::object_id(ELLIPTIC), &curve(key)?], key)
            }
            _ => return Err(KeyError::Unsupported("a form that is not known".to_owned())),
        };
        let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8);
        let signer = rustls::crypto::ring::sign::any_supported_type(&PrivateKeyDer::Pkcs8(pkcs8.clone_key()))
            .map_err(|e| KeyError::Unsupported(e.to_string()))?;
        let public = signer.public_key().ok_or_else(|| KeyError::Unsupported("it has no public key".to_owned()))?;
        Ok(Self { pkcs8, public: public.as_ref().to_vec() })
    }

    /// In the form that every library takes.
    #[must_use]
    pub fn pkcs8(&self) -> &PrivatePkcs8KeyDer<'static> {
        &self.pkcs8
    }

    /// The same, for TLS.
    #[must_use]
    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.pkcs8.clone_key())
    }

    /// Its public key: the `SubjectPublicKeyInfo` of certificates, in DER.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public
    }
}

/// A key in the PKCS#8 form: its algorithm, and the key in its own form.
fn wrapped(algorithm: &[&[u8]], key: &[u8]) -> Vec<u8> {
    let (version, algorithm) = (tagged(INTEGER, &[&[0]]), tagged(SEQUENCE, algorithm));
    tagged(SEQUENCE, &[&version, &algorithm, &tagged(OCTET_STRING, &[key])])
}

/// The identifier of the curve of a key in the SEC1 form, which may leave it out.
fn curve(key: &[u8]) -> Result<Vec<u8>, KeyError> {
    let malformed = || KeyError::Malformed("it is not in the form that its first line says".to_owned());
    let mut values = der::values(key).skip(1);
    let secret = values.next().and_then(der::content).ok_or_else(malformed)?;
    match values.find(|value| value.first() == Some(&PARAMETERS)).and_then(der::content) {
        Some(named) if named.first() == Some(&OBJECT_ID) => Ok(named.to_vec()),
        Some(_) => Err(KeyError::Unsupported("a curve that is spelled out instead of named".to_owned())),
        None => {
            let known = CURVES.iter().find(|(length, _)| *length == secret.len());
            known.map(|(_, arcs)| der::object_id(arcs)).ok_or_else(malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::files::{key, keys};
    use x509_parser::pem::parse_x509_pem;

    use super::*;

    #[test]
    fn keys_of_all_programs_are_those_of_their_certificates() {
        for (name, text) in keys() {
            let why = match PrivateKey::from_pem(&text) {
                Ok(key) => {
                    if let Ok((_, pem)) = parse_x509_pem(text.as_bytes())
                        && pem.label == "CERTIFICATE"
                    {
                        assert_eq!(key.public_key(), pem.parse_x509().unwrap().public_key().raw, "{name}");
                    }
                    continue;
                }
                Err(why) => why,
            };
            let expected = match &*name {
                "openssl-encrypted-pkcs8.pem" | "openssl-encrypted-pkcs1.pem" => why == KeyError::Encrypted,
                "go-p521-sec1.pem"
                | "openssl-p256-explicit.pem"
                | "openssl-rsa1024-pkcs1.pem"
                | "openssl-secp256k1-sec1.pem" => matches!(why, KeyError::Unsupported(_)),
                _ => false,
            };
            assert!(expected, "{name}: {why}");
        }
    }

    #[test]
    fn a_key_without_its_curve_is_told_by_its_length() {
        let PrivateKeyDer::Sec1(key) = PrivateKeyDer::from_pem_slice(key("go-p256-sec1.pem").as_bytes()).unwrap()
        else {
            panic!("not SEC1")
        };
        let named = curve(key.secret_sec1_der()).unwrap();
        let without: Vec<_> = der::values(key.secret_sec1_der()).filter(|value| value[0] != PARAMETERS).collect();
        assert_eq!(curve(&tagged(SEQUENCE, &without)), Ok(named));
    }

    #[test]
    fn what_is_no_key_says_so() {
        assert_eq!(PrivateKey::from_pem("").unwrap_err(), KeyError::Missing);
        assert_eq!(PrivateKey::from_pem("key").unwrap_err(), KeyError::Missing);
        for label in ["EC PRIVATE KEY", "RSA PRIVATE KEY", "PRIVATE KEY"] {
            let text = format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
            let why = PrivateKey::from_pem(&text).unwrap_err();
            assert!(matches!(why, KeyError::Malformed(_) | KeyError::Unsupported(_)), "{label}: {why}");
            assert!(PrivateKey::from_pem(&text[..40]).is_err());
        }
    }
}
