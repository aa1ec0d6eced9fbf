//! The secret with a token (upstream: `k8s.io/cluster-bootstrap`). Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use windlass_kit::bootstrap::Token;

use super::NAMESPACE;
use crate::service_account_tokens::BOOTSTRAP_SECRET_TYPE;

const PREFIX: &str = "bootstrap-token-";

/// Whether it holds a token by which nodes join.
pub(super) fn is_token(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(BOOTSTRAP_SECRET_TYPE) && secret.metadata.namespace.as_deref() == Some(NAMESPACE)
}

/// How long a token is good.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Life {
    WithoutEnd,
    /// For so much longer.
    For(Duration),
    /// Past, or its end cannot be read.
    Over,
}

fn data<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    let value = secret.data.as_ref()?.get(key)?;
    std::str::from_utf8(&value.0).ok().filter(|text| !text.is_empty())
}

pub(super) fn life(secret: &Secret, now: Timestamp) -> Life {
    let is_there = secret.data.as_ref().and_then(|data| data.get("expiration")).is_some_and(|end| !end.0.is_empty());
    if !is_there {
        return Life::WithoutEnd;
    }
    let end = data(secret, "expiration").and_then(|end| end.parse::<Timestamp>().ok());
    let left = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    left.filter(|left| !left.is_zero()).map_or(Life::Over, Life::For)
}

/// The token, if it may sign and is still good.
pub(super) fn signing_token(secret: &Secret, now: Timestamp) -> Option<Token> {
    let id = data(secret, "token-id").filter(|id| secret.name_any() == format!("{PREFIX}{id}"))?;
    let may_sign = data(secret, "usage-bootstrap-signing") == Some("true") && life(secret, now) != Life::Over;
    // One of another form is none: no node could use it.
    let token = format!("{id}.{}", data(secret, "token-secret")?).parse().ok();
    token.filter(|_| may_sign)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;

    fn secret(name: &str, data: &Value) -> Secret {
        let bytes = |text: &Value| ByteString(text.as_str().unwrap().as_bytes().to_vec());
        let data: serde_json::Map<String, Value> =
            data.as_object().unwrap().iter().map(|(key, value)| (key.clone(), json!(bytes(value)))).collect();
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        serde_json::from_value(json!({"metadata": metadata, "type": BOOTSTRAP_SECRET_TYPE, "data": data})).unwrap()
    }

    /// Those of upstream's `util_test.go`, and forms that are none.
    #[test]
    fn only_a_good_token_signs() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true",
            "expiration": "2026-01-01T00:00:10Z"});
        let with = |key: &str, value: Option<&str>| {
            let mut data = good.clone();
            match value {
                Some(value) => data[key] = json!(value),
                None => drop(data.as_object_mut().unwrap().remove(key)),
            }
            data
        };
        let is_signed = |name: &str, data: &Value| signing_token(&secret(name, data), now).is_some();
        assert!(is_signed("bootstrap-token-abcdef", &good));
        assert!(is_signed("bootstrap-token-abcdef", &with("expiration", None)));
        assert!(!is_signed("bootstrap-token-fedcba", &good), "another one's name");
        for (key, value) in [
            ("token-id", None),
            ("token-secret", None),
            ("token-secret", Some("short")),
            ("usage-bootstrap-signing", None),
            ("usage-bootstrap-signing", Some("yes")),
            ("expiration", Some("2026-01-01T00:00:00Z")),
            ("expiration", Some("soon")),
        ] {
            assert!(!is_signed("bootstrap-token-abcdef", &with(key, value)), "{key} {value:?}");
        }
    }

    #[test]
    fn an_end_that_cannot_be_read_is_past() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (end, expected) in [
            ("", Life::WithoutEnd),
            ("2026-01-01T01:00:30+01:00", Life::For(Duration::from_secs(30))),
            ("2025-12-31T23:59:59Z", Life::Over),
            ("tomorrow", Life::Over),
        ] {
            assert_eq!(life(&secret("s", &json!({"expiration": end})), now), expected, "{end}");
        }
    }
}
