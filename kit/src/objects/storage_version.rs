//! The storage version hash of a resource, as in discovery. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::digest::{SHA256, digest};
use windlass_apimachinery::group_version::GroupVersion;

/// The hash of the version in which objects of a kind are stored, by which clients detect a change of it. Upstream's
/// `StorageVersionHash`.
pub fn hash(api_version: &str, kind: &str) -> String {
    let GroupVersion { group, version } = GroupVersion::parse(api_version);
    let hash = digest(&SHA256, format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}
