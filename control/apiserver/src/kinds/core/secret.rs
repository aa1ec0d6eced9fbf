//! Secret. Its values are never repeated in errors. Pure.

use base64::Engine as _;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Map, Value, json};
use windlass_kit::{
    objects::pod_defaults::{child, set},
    private_key::{KeyError, PrivateKey},
};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::{Errors, text},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells, data, go_json,
            tables::{AGE, column, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let resource = Resource::new("", "secrets", "Secret", Secret);
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Secret"));
    v1.selectable = vec![SelectableField::path("type")];
    let columns = vec![column("Type", "What it holds."), column("Data", "Number of keys."), AGE];
    v1.table =
        named(columns, |object, age| vec![object["type"].clone(), json!(cells::keys(object, &["data"])), json!(age)]);
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct Secret;

impl Strategy for Secret {
    fn default(&self, object: &mut Map<String, Value>) {
        set(object, "type", json!("Opaque"));
        if let Some(Value::Object(texts)) = object.remove("stringData") {
            let data = child(object, "data");
            for (key, text) in texts {
                let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or(""));
                data.insert(key, Value::String(encoded));
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        data::validate_keys(object, &["data"], None, errors);
        validate_type(object, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        data::validate_immutable(new, old, errors);
        if old["type"] != new["type"] {
            errors.invalid("type", &new["type"], "field is immutable");
        }
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if text(new, "type") != "kubernetes.io/tls" {
            return Vec::new();
        }
        key_pair_problem(&value(new, "tls.crt"), &value(new, "tls.key")).into_iter().collect()
    }
}

/// The bytes under a key.
fn value(secret: &Value, key: &str) -> Vec<u8> {
    let encoded = text(&secret["data"], key);
    base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default()
}

/// The keys that a type of Secret must have.
fn validate_type(object: &Value, errors: &mut Errors) {
    let required: &[&str] = match text(object, "type") {
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/basic-auth" => {
            if object["data"].get("username").is_none() && object["data"].get("password").is_none() {
                errors.required("data[username]", "");
                errors.required("data[password]", "");
            }
            &[]
        }
        "kubernetes.io/service-account-token" => {
            if text(&object["metadata"]["annotations"], "kubernetes.io/service-account.name").is_empty() {
                errors.required("metadata.annotations[kubernetes.io/service-account.name]", "");
            }
            &[]
        }
        _ => &[],
    };
    for key in required {
        let field = format!("data[{key}]");
        let is_there = object["data"].get(key).is_some();
        match *key {
            // An empty key counts as missing.
            "ssh-privatekey" if text(&object["data"], key).is_empty() => errors.required(field, ""),
            _ if !is_there => errors.required(field, ""),
            ".dockerconfigjson" | ".dockercfg" => {
                if let Some(why) = not_an_object(&value(object, key)) {
                    errors.invalid_text(field, "<secret contents redacted>", &why);
                }
            }
            _ => {}
        }
    }
}

/// Why a text is no JSON object, in Go's words where they do not depend on its parser. Nothing of the text is repeated.
fn not_an_object(text: &[u8]) -> Option<String> {
    let kind = match serde_json::from_slice::<Value>(text) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(Value::Array(_)) => "array",
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Err(why) if why.is_eof() => return Some("unexpected end of JSON input".to_owned()),
        Err(why) => {
            let begins = std::str::from_utf8(text).ok().and_then(go_json::bad_beginning);
            let place = || format!("invalid JSON at line {}, column {}", why.line(), why.column());
            return Some(begins.unwrap_or_else(place));
        }
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

/// What is wrong with a certificate and its key, in the words of Go's `tls.X509KeyPair`.
fn key_pair_problem(certificate: &[u8], key: &[u8]) -> Option<String> {
    let labels = |pem: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(pem);
        let begun = text.lines().filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
        begun.map(str::to_owned).collect()
    };
    let is_key = |label: &String| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let (of_certificate, of_key) = (labels(certificate), labels(key));
    let why = if of_certificate.is_empty() {
        "failed to find any PEM data in certificate input"
    } else if !of_certificate.iter().any(|label| label == "CERTIFICATE") {
        if of_certificate.len() == 1 && is_key(&of_certificate[0]) {
            "failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have \
             been switched"
        } else {
            "failed to find \"CERTIFICATE\" PEM block in certificate input"
        }
    } else if of_key.is_empty() {
        "failed to find any PEM data in key input"
    } else if !of_key.iter().any(is_key) {
        "found a certificate rather than a key in the PEM for the private key"
    } else {
        return mismatch(certificate, key);
    };
    Some(format!("tls: {why}"))
}

/// Whether both can be read and belong to each other.
fn mismatch(certificate: &[u8], key: &[u8]) -> Option<String> {
    let Some(Ok(leaf)) = CertificateDer::pem_slice_iter(certificate).next() else {
        return Some("x509: malformed certificate".to_owned());
    };
    let Ok((_, read)) = X509Certificate::from_der(&leaf) else { return Some("x509: malformed certificate".to_owned()) };
    let key = match PrivateKey::from_pem(&String::from_utf8_lossy(key)) {
        Ok(key) => key,
        // Go knows more kinds, such as P-521; whether such a key is the certificate's is not known here.
        Err(KeyError::Unsupported(_)) => return None,
        Err(_) => return Some("tls: failed to parse private key".to_owned()),
    };
    let public = key.public_key();
    let algorithm = SubjectPublicKeyInfo::from_der(public).map(|(_, info)| info.algorithm.algorithm.clone());
    let other_type = algorithm.is_ok_and(|algorithm| algorithm != read.public_key().algorithm.algorithm);
    if other_type {
        return Some("tls: private key type does not match public key type".to_owned());
    }
    let same = public == read.public_key().raw;
    (!same).then(|| "tls: private key does not match public key".to_owned())
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::files;

    use super::*;

    /// What Go's `tls.X509KeyPair` says, recorded from kube-apiserver 1.36.
    #[test]
    fn keys_belong_to_their_certificates() {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let other_type = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        let both = format!("{key}{certificate}");
        for (certificate, key, wanted) in [
            (&*certificate, &*key, None),
            (&*both, &*key, None),
            (&*certificate, &*other, Some("tls: private key does not match public key")),
            (&*certificate, &*other_type, Some("tls: private key type does not match public key type")),
            ("x", &*key, Some("tls: failed to find any PEM data in certificate input")),
            (&*certificate, "x", Some("tls: failed to find any PEM data in key input")),
            (
                &*key,
                &*certificate,
                Some(
                    "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM \
                     inputs may have been switched",
                ),
            ),
            ("", "", Some("tls: failed to find any PEM data in certificate input")),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &*key,
                Some("x509: malformed certificate"),
            ),
        ] {
            let found = key_pair_problem(certificate.as_bytes(), key.as_bytes());
            assert_eq!(found.as_deref(), wanted);
        }
    }

    /// Pairs as openssl, Go and kubeadm write them, most of them in one file.
    #[test]
    fn pairs_of_other_programs_belong_together() {
        let problem = |certificate: &str, key: &str| key_pair_problem(certificate.as_bytes(), key.as_bytes());
        let mut seen = 0;
        for (name, text) in files::keys().iter().filter(|(_, text)| text.contains("-----BEGIN CERTIFICATE-----")) {
            assert_eq!(problem(text, text), None, "{name}");
            seen += 1;
        }
        assert!(seen > 10, "{seen}");
        let authority = |algorithm: &str, end: &str| files::key(&format!("kubeadm-{algorithm}-ca.{end}"));
        for algorithm in ["RSA-2048", "ECDSA-P256"] {
            assert_eq!(problem(&authority(algorithm, "crt"), &authority(algorithm, "key")), None, "{algorithm}");
            let other = files::key(&format!("kubeadm-{algorithm}-sa.key"));
            let wrong = Some("tls: private key does not match public key".to_owned());
            assert_eq!(problem(&authority(algorithm, "crt"), &other), wrong, "{algorithm}");
        }
        let wrong = Some("tls: private key type does not match public key type".to_owned());
        assert_eq!(problem(&authority("RSA-2048", "crt"), &authority("ECDSA-P256", "key")), wrong);
    }

    #[test]
    fn configurations_of_docker_are_json_objects() {
        for (text, is_good) in [
            ("{}", true),
            ("{\"auths\": {\"a\": 1}}", true),
            ("x", false),
            ("", false),
            ("[1]", false),
            ("\"geheim\"", false),
        ] {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            let mut errors = Errors::default();
            let data = json!({".dockerconfigjson": encoded});
            validate_type(&json!({"type": "kubernetes.io/dockerconfigjson", "data": data}), &mut errors);
            assert_eq!(errors.0.is_empty(), is_good, "{text}");
            // Nothing of a Secret is repeated.
            let told = "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": ";
            assert!(
                errors.0.iter().all(|e| e.to_string().starts_with(told) && !e.to_string().contains("geheim")),
                "{:?}",
                errors.0
            );
        }
    }
}
