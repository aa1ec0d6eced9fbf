//! Which version of a resource is stored, as discovery tells it. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::digest::{SHA256, digest};

/// The hash of the version in which the objects of a kind are stored, by which clients tell that it has changed. Upstream's
/// `StorageVersionHash`.
pub(crate) fn hash(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let hash = digest(&SHA256, format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}
