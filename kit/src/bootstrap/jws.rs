//! Detached JSON Web Signatures (RFC 7515, appendix F) with HS256, keyed with the secret of a token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::Value;

use super::Token;

/// Why a signature is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// It is not of the form `HEADER..SIGNATURE`.
    #[error("it is no detached JSON web signature")]
    Form,
    /// Another algorithm.
    #[error("it is signed with {0:?}, not with HS256")]
    Algorithm(String),
    /// A signature of another token.
    #[error("it is signed with the token {0:?}, not with this one")]
    Another(String),
    /// Another secret, or another payload.
    #[error("it does not fit: the token's secret is another one, or what is signed was changed")]
    Wrong,
}

fn key(token: &Token) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes())
}

fn signed(header: &str, payload: &[u8]) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload))
}

/// The signature of `payload`. kubeadm compares texts, so the header is equal to its own.
#[must_use]
pub fn sign(token: &Token, payload: &[u8]) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, token.id()));
    let tag = hmac::sign(&key(token), signed(&header, payload).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Verifies that `payload` was signed with the token.
///
/// # Errors
/// Why it is invalid.
pub fn verify(token: &Token, payload: &[u8], signature: &str) -> Result<(), BadSignature> {
    let (header, tag) = signature.split_once("..").ok_or(BadSignature::Form)?;
    let decoded = URL_SAFE_NO_PAD.decode(header).map_err(|_| BadSignature::Form)?;
    let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| BadSignature::Form)?;
    let fields: Value = serde_json::from_slice(&decoded).map_err(|_| BadSignature::Form)?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    if text("alg") != "HS256" {
        return Err(BadSignature::Algorithm(text("alg")));
    }
    if text("kid") != token.id() {
        return Err(BadSignature::Another(text("kid")));
    }
    hmac::verify(&key(token), signed(header, payload).as_bytes(), &tag).map_err(|_| BadSignature::Wrong)
}
