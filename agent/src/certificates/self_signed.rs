//! The self-signed serving certificate, used until there is a signed one.

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use windlass_kit::atomic_file;

use super::certified_key::{CertificateTemplate, CertifiedKey};

/// Validity, as upstream's, and how long before expiration it is replaced.
const VALIDITY_DAYS: i64 = 365;
const RENEW_BEFORE_DAYS: i64 = 30;
const SECONDS_PER_DAY: i64 = 86_400;

fn paths(dir: &Path) -> [PathBuf; 2] {
    ["kubelet.crt", "kubelet.key"].map(|name| dir.join(name))
}

/// Removes its files.
pub(super) fn remove_all(dir: &Path) -> io::Result<()> {
    paths(dir).iter().try_for_each(|file| atomic_file::remove(file))
}

/// The self-signed certificate in `dir` (`kubelet.crt`, `kubelet.key`), created again when it is missing, expires soon
/// or misses a name or an address. Unlike upstream's it names the node's addresses.
///
/// # Errors
/// When it cannot be created or saved.
pub fn self_signed(dir: &Path, wanted: &CertificateTemplate) -> io::Result<CertifiedKey> {
    let [cert, key] = paths(dir);
    let now = Timestamp::now().as_second();
    if let (Some(cert), Some(key)) = (atomic_file::read(&cert)?, atomic_file::read(&key)?) {
        let pair = CertifiedKey { cert, key };
        if pair.check(wanted, now).is_ok_and(|life| life.not_after - now > RENEW_BEFORE_DAYS * SECONDS_PER_DAY) {
            return Ok(pair);
        }
    }
    let pair =
        make(wanted, now).map_err(|e| io::Error::other(format!("no certificate can be made for this node: {e}")))?;
    atomic_file::make_dir(dir, 0o755)?;
    // A certificate that does not match its key is replaced, so the order does not matter.
    atomic_file::write_durable(&key, pair.key.as_bytes(), 0o600)?;
    atomic_file::write_durable(&cert, pair.cert.as_bytes(), 0o644)?;
    Ok(pair)
}

fn make(wanted: &CertificateTemplate, now: i64) -> Result<CertifiedKey, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = wanted.params()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let at =
        |seconds: i64| time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    // Backdated by an hour: clients' clocks may be behind.
    (params.not_before, params.not_after) = (at(now - 3600), at(now + VALIDITY_DAYS * SECONDS_PER_DAY));
    let made = params.self_signed(&key)?;
    Ok(CertifiedKey { cert: made.pem(), key: key.serialize_pem() })
}
