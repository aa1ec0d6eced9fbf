//! Service account tokens: JSON Web Tokens, signed with ES256 by the server's key. The claims are the API's business;
//! this module signs and verifies. No I/O.

use base64::Engine as _;
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The issuer, and the default audience.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The issuer of tokens without an end, which are good while the secret with them exists.
pub(crate) const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The type of such secrets.
pub(crate) const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
/// The type of secrets with a token by which a node joins.
pub(crate) const BOOTSTRAP_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The label of secrets of service accounts whose token is not taken any more, with the day since when.
pub(crate) const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label with the day on which such a token was last used.
pub(crate) const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The ConfigMap in `kube-system` that says since when the use of such tokens is noted, in the field [`TRACKED_SINCE`].
pub(crate) const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
pub(crate) const TRACKED_SINCE: &str = "since";

/// The path of [`TokenIssuer::openid_configuration`].
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The path of [`TokenIssuer::key_set`].
pub const KEY_SET_PATH: &str = "/openid/v1/jwks";

/// The signing key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the key of service accounts' tokens cannot be used: {0}")]
pub struct Error(String);

/// Signs and verifies tokens.
pub struct TokenIssuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    /// The key id in each token's header.
    id: String,
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("TokenIssuer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TokenIssuer {
    /// Reads a P-256 key in PEM (PKCS #8).
    ///
    /// # Errors
    /// When it is not such a key.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let wrong = |why: &dyn std::fmt::Display| Error(why.to_string());
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| wrong(&e))?;
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_der(), &random)
            .map_err(|e| wrong(&e))?;
        let id = BASE64.encode(ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref()));
        Ok(Self { key, random, id })
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn sign(&self, claims: &Value) -> Result<String, Error> {
        let head = json!({"alg": "ES256", "kid": self.id});
        let text = format!("{}.{}", BASE64.encode(head.to_string()), BASE64.encode(claims.to_string()));
        let signature =
            self.key.sign(&self.random, text.as_bytes()).map_err(|_| Error("it could not sign".to_owned()))?;
        Ok(format!("{text}.{}", BASE64.encode(signature)))
    }

    /// The discovery document of OpenID Connect, by which others find the keys (upstream: `serviceaccount.NewOpenIDMetadata`).
    #[must_use]
    pub fn openid_configuration() -> Value {
        json!({
            "issuer": ISSUER,
            "jwks_uri": format!("{ISSUER}{KEY_SET_PATH}"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// The public key, as a JSON Web Key Set.
    #[must_use]
    pub fn key_set(&self) -> Value {
        // Uncompressed: a byte that says so, and both coordinates.
        let point = self.key.public_key().as_ref().get(1..).unwrap_or_default();
        let (x, y) = point.split_at(point.len() / 2);
        let key = json!({
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": BASE64.encode(x), "y": BASE64.encode(y),
        });
        json!({"keys": [key]})
    }

    /// The claims of a token that is signed by this key and valid at `now` (seconds since 1970).
    #[must_use]
    pub fn verify(&self, token: &str, now: i64) -> Option<Value> {
        let claims = self.signed(token)?;
        let good = claims["iss"] == ISSUER
            && claims["exp"].as_i64().is_some_and(|end| now < end)
            && claims["nbf"].as_i64().is_none_or(|begin| begin <= now);
        good.then_some(claims)
    }

    /// The claims of a token without an end that is signed by this key.
    pub(crate) fn verify_legacy(&self, token: &str) -> Option<Value> {
        self.signed(token).filter(|claims| claims["iss"] == LEGACY_ISSUER)
    }

    /// The claims of a token that is signed by this key.
    fn signed(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.rsplit_once('.')?;
        let (head, claims) = text.split_once('.')?;
        let read = |part: &str| -> Option<Value> { serde_json::from_slice(&BASE64.decode(part).ok()?).ok() };
        // Only our own algorithm: a token's header must not choose one.
        if read(head)?["alg"] != "ES256" {
            return None;
        }
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        key.verify(text.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
        read(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> TokenIssuer {
        TokenIssuer::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap()
    }

    #[test]
    fn a_token_has_its_claims_until_it_expires() {
        let ours = tokens();
        let claims = json!({"iss": ISSUER, "sub": "system:serviceaccount:a:b", "nbf": 100, "exp": 200});
        let token = ours.sign(&claims).unwrap();
        assert_eq!(ours.verify(&token, 150), Some(claims));
        assert_eq!((ours.verify(&token, 200), ours.verify(&token, 99)), (None, None));
        assert_eq!(tokens().verify(&token, 150), None, "another key's");
    }

    #[test]
    fn others_verify_tokens_by_the_key_set() {
        let ours = tokens();
        let set = ours.key_set();
        let [key] = set["keys"].as_array().unwrap().as_slice() else { panic!("{set}") };
        let read = |field: &str| BASE64.decode(key[field].as_str().unwrap()).unwrap();
        let point = [vec![4], read("x"), read("y")].concat();
        let token = ours.sign(&json!({"iss": ISSUER, "exp": 200})).unwrap();
        let (text, signature) = token.rsplit_once('.').unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        public.verify(text.as_bytes(), &BASE64.decode(signature).unwrap()).unwrap();
        let head: Value = serde_json::from_slice(&BASE64.decode(text.split_once('.').unwrap().0).unwrap()).unwrap();
        assert_eq!(head["kid"], key["kid"]);
    }

    #[test]
    fn a_forged_token_is_refused() {
        let ours = tokens();
        let token = ours.sign(&json!({"iss": ISSUER, "exp": 200})).unwrap();
        let mut parts: Vec<&str> = token.split('.').collect();
        let forged = BASE64.encode(json!({"iss": ISSUER, "exp": 900}).to_string());
        parts[1] = &forged;
        assert_eq!(ours.verify(&parts.join("."), 150), None);
        let none = BASE64.encode(r#"{"alg":"none"}"#);
        assert_eq!(ours.verify(&format!("{none}.{forged}."), 150), None);
        for text in ["", ".", "..", "a.b.c", &token[..token.len() - 2]] {
            assert_eq!(ours.verify(text, 150), None, "{text}");
        }
        let foreign = ours.sign(&json!({"iss": "https://other", "exp": 200})).unwrap();
        assert_eq!(ours.verify(&foreign, 150), None);
    }
}
