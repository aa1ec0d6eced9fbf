//! The secret with a token by which nodes join (upstream: `k8s.io/cluster-bootstrap`): what signs with it and who removes it
//! (controllers), and whom it lets in (authenticator), read it here. Pure.

use std::{collections::BTreeSet, time::Duration};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use ring::digest::{SHA256, digest};
use windlass_apimachinery::schema::rfc3339;
use windlass_kit::bootstrap::Token;

use crate::service_account_tokens::BOOTSTRAP_SECRET_TYPE;

/// The namespace of the secrets with tokens.
pub const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";
/// The group of all users with a token.
const GROUP: &str = "system:bootstrappers";
/// The longest name of a group below it.
const MAX_GROUP_BYTES: usize = 256;

/// Whether it holds a token by which nodes join.
pub fn is_token(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(BOOTSTRAP_SECRET_TYPE) && secret.metadata.namespace.as_deref() == Some(NAMESPACE)
}

/// How long a token is good.
#[derive(Debug, PartialEq, Eq)]
pub enum Life {
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

pub fn life(secret: &Secret, now: Timestamp) -> Life {
    let is_there = secret.data.as_ref().and_then(|data| data.get("expiration")).is_some_and(|end| !end.0.is_empty());
    if !is_there {
        return Life::WithoutEnd;
    }
    let timestamp = |end: DateTime| match end.to_zoned(TimeZone::UTC) {
        Ok(end) => end.timestamp(),
        // In the last days of the year 9999, or of the first one.
        Err(_) if end.year() > 0 => Timestamp::MAX,
        Err(_) => Timestamp::MIN,
    };
    let end = data(secret, "expiration").and_then(rfc3339).map(timestamp);
    let left = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    left.filter(|left| !left.is_zero()).map_or(Life::Over, Life::For)
}

/// The name of the secret with the token of an id.
pub fn name_of(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// What an authenticated token stands for: the groups of its user.
///
/// # Errors
/// Why the secret does not let the token in, in a form for the log that has no secret.
pub fn groups_of(secret: &Secret, token: &Token, now: Timestamp) -> Result<Vec<String>, String> {
    let is = |key: &str, wanted: &str| {
        let given = secret.data.as_ref().and_then(|data| data.get(key));
        // Comparing hashes: the time taken reveals nothing about the secret.
        let hash = |bytes: &[u8]| digest(&SHA256, bytes).as_ref().to_vec();
        given.is_some_and(|given| hash(&given.0) == hash(wanted.as_bytes()))
    };
    if secret.metadata.deletion_timestamp.is_some() {
        return Err("it is deleted and waits for its removal".to_owned());
    }
    if !is_token(secret) {
        return Err(format!("it is not of type {BOOTSTRAP_SECRET_TYPE}"));
    }
    if !is("token-secret", token.secret()) || !is("token-id", token.id()) {
        return Err("it has another token".to_owned());
    }
    if life(secret, now) == Life::Over {
        return Err("it has expired".to_owned());
    }
    if !is("usage-bootstrap-authentication", "true") {
        return Err("it is not marked usage-bootstrap-authentication=true".to_owned());
    }
    let mut groups = BTreeSet::from([GROUP.to_owned()]);
    if let Some(more) =
        secret.data.as_ref().and_then(|data| data.get("auth-extra-groups")).filter(|more| !more.0.is_empty())
    {
        for group in String::from_utf8_lossy(&more.0).split(',') {
            if !is_bootstrap_group(group) {
                return Err(format!("its auth-extra-groups has {group:?}, which does not begin with {GROUP}:"));
            }
            groups.insert(group.to_owned());
        }
    }
    Ok(groups.into_iter().collect())
}

/// Whether a token may be in a group: one below the group of all tokens, as upstream's `BootstrapGroupPattern`.
fn is_bootstrap_group(group: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
    let Some(rest) = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else { return false };
    rest.len() <= MAX_GROUP_BYTES && rest.bytes().all(fine) && rest.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// The token, if it may sign and is still good.
pub fn signing_token(secret: &Secret, now: Timestamp) -> Option<Token> {
    let id = data(secret, "token-id").filter(|id| secret.name_any() == name_of(id))?;
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
            ("2026-01-01 00:00:30Z", Life::Over),
            ("2026-01-01T00:01Z", Life::Over),
        ] {
            assert_eq!(life(&secret("s", &json!({"expiration": end})), now), expected, "{end}");
        }
        // What users write for a token that shall never end is no time that fits into a timestamp.
        let left = life(&secret("s", &json!({"expiration": "9999-12-31T23:59:59Z"})), now);
        assert!(matches!(left, Life::For(left) if left > Duration::from_secs(3600 * 24 * 365 * 7000)), "{left:?}");
    }
}
