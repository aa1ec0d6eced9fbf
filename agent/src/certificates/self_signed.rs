//! The certificate that the node's API shows while nobody has signed one.

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use windlass_kit::atomic_file;

use super::pair::{Pair, Wanted};

/// It is good for a year, as upstream's, and made anew a month before its end.
const DAYS: i64 = 365;
const RENEW_DAYS: i64 = 30;
const DAY: i64 = 86_400;

fn paths(dir: &Path) -> [PathBuf; 2] {
    ["kubelet.crt", "kubelet.key"].map(|name| dir.join(name))
}

/// Removes it.
pub(super) fn forget(dir: &Path) -> io::Result<()> {
    paths(dir).iter().try_for_each(|file| atomic_file::remove(file))
}

/// The self-signed certificate in `dir` (`kubelet.crt`, `kubelet.key`), made anew when it is missing, ends soon or lacks
/// a name or an address. Unlike upstream's it names the node's addresses, by which it is asked.
///
/// # Errors
/// When it cannot be made or kept.
pub fn self_signed(dir: &Path, wanted: &Wanted) -> io::Result<Pair> {
    let [cert, key] = paths(dir);
    let now = Timestamp::now().as_second();
    if let (Some(cert), Some(key)) = (atomic_file::read(&cert)?, atomic_file::read(&key)?) {
        let pair = Pair { cert, key };
        if pair.check(wanted, now).is_ok_and(|life| life.ends - now > RENEW_DAYS * DAY) {
            return Ok(pair);
        }
    }
    let pair =
        make(wanted, now).map_err(|e| io::Error::other(format!("no certificate can be made for this node: {e}")))?;
    atomic_file::make_dir(dir, 0o755)?;
    // A certificate without its key is made anew, so the order does not matter.
    atomic_file::write_durable(&key, pair.key.as_bytes(), 0o600)?;
    atomic_file::write_durable(&cert, pair.cert.as_bytes(), 0o644)?;
    Ok(pair)
}

fn make(wanted: &Wanted, now: i64) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = wanted.params()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let at =
        |seconds: i64| time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    // An hour back: the clocks of those who look at it may be behind.
    (params.not_before, params.not_after) = (at(now - 3600), at(now + DAYS * DAY));
    let made = params.self_signed(&key)?;
    Ok(Pair { cert: made.pem(), key: key.serialize_pem() })
}
