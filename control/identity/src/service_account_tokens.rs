//! Service account tokens: JSON Web Tokens, signed by the server's key with the algorithm that fits it, as upstream's are
//! (`serviceaccount.signerFromECDSAPrivateKey` and `signerFromRSAPrivateKey`). The claims are the API's business; this module
//! signs and verifies. No I/O.

use base64::Engine as _;
use ring::{
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{self, EcdsaKeyPair, KeyPair as _, RsaKeyPair, UnparsedPublicKey},
};
use serde_json::{Value, json};
use windlass_kit::private_key::PrivateKey;
use x509_parser::pem::Pem;

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The issuer, and the default audience, of a cluster of `windlass up`.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The issuer of tokens without an end, which are good while the secret with them exists.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The type of such secrets.
pub const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
/// The type of secrets with a token by which a node joins.
pub const BOOTSTRAP_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The label of secrets of service accounts whose token is not taken any more, with the day since when.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label with the day on which such a token was last used.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The ConfigMap in `kube-system` that says since when the use of such tokens is noted, in the field [`TRACKED_SINCE`].
pub const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
pub const TRACKED_SINCE: &str = "since";

/// The path of [`TokenIssuer::openid_configuration`].
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The path of [`TokenIssuer::key_set`].
pub const KEY_SET_PATH: &str = "/openid/v1/jwks";

/// The signing key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the key of service accounts' tokens cannot be used: {0}")]
pub struct Error(String);

/// A key, by the algorithm that it signs with.
enum Signer {
    Es256(EcdsaKeyPair),
    Es384(EcdsaKeyPair),
    Rs256(Box<RsaKeyPair>),
}

impl Signer {
    fn new(key: &PrivateKey) -> Option<Self> {
        let (der, random) = (key.pkcs8().secret_pkcs8_der(), SystemRandom::new());
        let elliptic = |algorithm| EcdsaKeyPair::from_pkcs8(algorithm, der, &random).ok();
        elliptic(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)
            .map(Self::Es256)
            .or_else(|| elliptic(&signature::ECDSA_P384_SHA384_FIXED_SIGNING).map(Self::Es384))
            .or_else(|| RsaKeyPair::from_pkcs8(der).ok().map(|key| Self::Rs256(Box::new(key))))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Es256(_) => "ES256",
            Self::Es384(_) => "ES384",
            Self::Rs256(_) => "RS256",
        }
    }

    fn sign(&self, random: &SystemRandom, text: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Es256(key) | Self::Es384(key) => key.sign(random, text).ok().map(|signed| signed.as_ref().to_vec()),
            Self::Rs256(key) => {
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(&signature::RSA_PKCS1_SHA256, random, text, &mut signed).ok()?;
                Some(signed)
            }
        }
    }

    fn has_signed(&self, text: &[u8], signed: &[u8]) -> bool {
        let (algorithm, public): (&dyn signature::VerificationAlgorithm, &[u8]) = match self {
            Self::Es256(key) => (&signature::ECDSA_P256_SHA256_FIXED, key.public_key().as_ref()),
            Self::Es384(key) => (&signature::ECDSA_P384_SHA384_FIXED, key.public_key().as_ref()),
            Self::Rs256(key) => (&signature::RSA_PKCS1_2048_8192_SHA256, key.public_key().as_ref()),
        };
        UnparsedPublicKey::new(algorithm, public).verify(text, signed).is_ok()
    }

    /// The public key as a JSON Web Key.
    fn web_key(&self) -> Value {
        let elliptic = |key: &EcdsaKeyPair, curve: &str| {
            // Uncompressed: a byte that says so, and both coordinates.
            let point = key.public_key().as_ref().get(1..).unwrap_or_default();
            let (x, y) = point.split_at(point.len() / 2);
            json!({"kty": "EC", "crv": curve, "x": BASE64.encode(x), "y": BASE64.encode(y)})
        };
        match self {
            Self::Es256(key) => elliptic(key, "P-256"),
            Self::Es384(key) => elliptic(key, "P-384"),
            Self::Rs256(key) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "n": BASE64.encode(public.n), "e": BASE64.encode(public.e)})
            }
        }
    }
}

/// Signs and verifies tokens.
pub struct TokenIssuer {
    key: Signer,
    random: SystemRandom,
    /// The key id in each token's header.
    id: String,
    names: IssuerNames,
}

/// What tokens say of their issuer, and where others find its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerNames {
    /// Whose tokens are accepted; new ones are of the first.
    pub issuers: Vec<String>,
    /// The audiences that the server is, which tokens have by default.
    pub audiences: Vec<String>,
    /// The address of the key set.
    pub key_set_uri: String,
}

impl Default for IssuerNames {
    fn default() -> Self {
        let own = || vec![ISSUER.to_owned()];
        Self { issuers: own(), audiences: own(), key_set_uri: format!("{ISSUER}{KEY_SET_PATH}") }
    }
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("TokenIssuer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TokenIssuer {
    /// Reads a key in PEM: RSA, P-256 or P-384, in any form.
    ///
    /// # Errors
    /// When it is not such a key.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let read = PrivateKey::from_pem(pem).map_err(|e| Error(e.to_string()))?;
        let key = Signer::new(&read).ok_or_else(|| {
            Error("tokens are signed with RSA, P-256 or P-384 keys only, and this is none".to_owned())
        })?;
        // Upstream's (`keyIDFromPublicKey`), so that a key that moves here keeps its name.
        let id = BASE64.encode(ring::digest::digest(&ring::digest::SHA256, read.public_key()));
        Ok(Self { key, random: SystemRandom::new(), id, names: IssuerNames::default() })
    }

    /// The same key under other names.
    #[must_use]
    pub fn with_names(self, names: IssuerNames) -> Self {
        Self { names, ..self }
    }

    /// The issuer of new tokens.
    #[must_use]
    pub fn issuer(&self) -> &str {
        self.names.issuers.first().map_or(ISSUER, String::as_str)
    }

    /// The audiences that the server is.
    #[must_use]
    pub fn audiences(&self) -> &[String] {
        &self.names.audiences
    }

    /// Whether all keys of a file are the one that signs: public or private keys, or certificates, in PEM (upstream:
    /// `keyutil.PublicKeysFromFile`).
    ///
    /// # Errors
    /// When there is none, or what is there cannot be read.
    pub fn has_only_key(&self, pem: &str) -> Result<bool, Error> {
        let keys = public_keys(pem)?;
        Ok(keys.iter().all(|key| self.id == BASE64.encode(ring::digest::digest(&ring::digest::SHA256, key))))
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn sign(&self, claims: &Value) -> Result<String, Error> {
        let head = json!({"alg": self.key.algorithm(), "kid": self.id});
        let text = format!("{}.{}", BASE64.encode(head.to_string()), BASE64.encode(claims.to_string()));
        let signature =
            self.key.sign(&self.random, text.as_bytes()).ok_or_else(|| Error("it could not sign".to_owned()))?;
        Ok(format!("{text}.{}", BASE64.encode(signature)))
    }

    /// The discovery document of OpenID Connect, by which others find the keys (upstream: `serviceaccount.NewOpenIDMetadata`).
    #[must_use]
    pub fn openid_configuration(&self) -> Value {
        json!({
            "issuer": self.issuer(),
            "jwks_uri": self.names.key_set_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.key.algorithm()],
        })
    }

    /// The public key, as a JSON Web Key Set.
    #[must_use]
    pub fn key_set(&self) -> Value {
        let mut key = self.key.web_key();
        key["use"] = "sig".into();
        key["kid"] = self.id.as_str().into();
        key["alg"] = self.key.algorithm().into();
        json!({"keys": [key]})
    }

    /// The claims of a token that is signed by this key and valid at `now` (seconds since 1970).
    #[must_use]
    pub fn verify(&self, token: &str, now: i64) -> Option<Value> {
        let claims = self.signed(token)?;
        let good = self.names.issuers.iter().any(|issuer| claims["iss"] == issuer.as_str())
            && claims["exp"].as_i64().is_some_and(|end| now < end)
            && claims["nbf"].as_i64().is_none_or(|begin| begin <= now);
        good.then_some(claims)
    }

    /// The claims of a token without an end that is signed by this key.
    pub fn verify_legacy(&self, token: &str) -> Option<Value> {
        self.signed(token).filter(|claims| claims["iss"] == LEGACY_ISSUER)
    }

    /// The claims of a token that is signed by this key.
    fn signed(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.rsplit_once('.')?;
        let (head, claims) = text.split_once('.')?;
        let read = |part: &str| -> Option<Value> { serde_json::from_slice(&BASE64.decode(part).ok()?).ok() };
        // Only our own algorithm: a token's header must not choose one.
        if read(head)?["alg"] != self.key.algorithm() {
            return None;
        }
        if !self.key.has_signed(text.as_bytes(), &BASE64.decode(signature).ok()?) {
            return None;
        }
        read(claims)
    }
}

/// The public keys (`SubjectPublicKeyInfo`, DER) of a text in PEM.
fn public_keys(text: &str) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys = Vec::new();
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let block = block.map_err(|e| Error(e.to_string()))?;
        match block.label.as_str() {
            "CERTIFICATE" => {
                let read = block.parse_x509().map_err(|e| Error(e.to_string()))?;
                keys.push(read.public_key().raw.to_vec());
            }
            "PUBLIC KEY" => keys.push(block.contents),
            // A private key, whose parameters may stand before it.
            _ => {}
        }
    }
    if keys.is_empty() {
        keys.push(PrivateKey::from_pem(text).map_err(|e| Error(e.to_string()))?.public_key().to_vec());
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::files::key;

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
        let public = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
        public.verify(text.as_bytes(), &BASE64.decode(signature).unwrap()).unwrap();
        let head: Value = serde_json::from_slice(&BASE64.decode(text.split_once('.').unwrap().0).unwrap()).unwrap();
        assert_eq!(head["kid"], key["kid"]);
    }

    /// With the keys of kubeadm, openssl and Go: what signs is what the discovery documents name.
    #[test]
    fn keys_of_other_programs_sign_with_their_own_algorithm() {
        for (file, algorithm) in [
            ("kubeadm-RSA-2048-sa.key", "RS256"),
            ("kubeadm-ECDSA-P256-sa.key", "ES256"),
            ("openssl-p384-sec1.pem", "ES384"),
            ("openssl-p256-ecparam.pem", "ES256"),
            ("go-rsa-pkcs8.pem", "RS256"),
        ] {
            let ours = TokenIssuer::from_pem(&key(file)).unwrap();
            let claims = json!({"iss": ISSUER, "exp": 200});
            let token = ours.sign(&claims).unwrap();
            assert_eq!(ours.verify(&token, 150), Some(claims), "{file}");
            assert_eq!(tokens().verify(&token, 150), None, "{file}: another key's");
            let head: Value =
                serde_json::from_slice(&BASE64.decode(token.split_once('.').unwrap().0).unwrap()).unwrap();
            let set = ours.key_set();
            let key = &set["keys"][0];
            assert_eq!((&head["alg"], &head["kid"]), (&key["alg"], &key["kid"]), "{file}");
            assert_eq!(head["alg"], algorithm, "{file}");
            assert_eq!(ours.openid_configuration()["id_token_signing_alg_values_supported"], json!([algorithm]));
            if algorithm == "RS256" {
                let read = |field: &str| BASE64.decode(key[field].as_str().unwrap()).unwrap();
                let public = PublicKeyComponents { n: read("n"), e: read("e") };
                let (text, signature) = token.rsplit_once('.').unwrap();
                let signature = BASE64.decode(signature).unwrap();
                public.verify(&signature::RSA_PKCS1_2048_8192_SHA256, text.as_bytes(), &signature).unwrap();
            }
        }
        for file in ["go-ed25519-pkcs8.pem", "go-p521-sec1.pem", "openssl-encrypted-pkcs8.pem"] {
            assert!(TokenIssuer::from_pem(&key(file)).is_err(), "{file}");
        }
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
