//! When a certificate is requested and rotated. Pure: time and jitter are passed as values.

use std::time::Duration;

use super::certified_key::{CertificateError, CertificateTemplate, CertifiedKey, Validity};

/// Rotation is due at 70 to 90 % of the validity, so that nodes do not rotate all at once; upstream's.
const MIN_ROTATION_FRACTION: f64 = 0.7;
const ROTATION_JITTER: f64 = 0.2;
/// Retries start at 2 s and double up to 32 s, with 10 % jitter; upstream's.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(32);
/// The longest delay after denials: each retry is a new object that an administrator sees.
const DENIED_RETRY_MAX: Duration = Duration::from_secs(300);

/// The next step for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until this time, in seconds since 1970.
    Wait(i64),
    /// Request one, for this reason.
    Request(String),
    /// Nothing: it is valid and not to be rotated.
    Keep,
}

/// The next step for `current` at `now`. `jitter` is in [0, 1], constant per certificate.
pub(super) fn next_step(
    current: Option<&CertifiedKey>,
    wanted: &CertificateTemplate,
    renew: bool,
    jitter: f64,
    now: i64,
) -> Next {
    let Some(pair) = current else { return Next::Request("there is none yet".to_owned()) };
    match pair.check(wanted, now) {
        Ok(_) if !renew => Next::Keep,
        Ok(life) => match rotation_deadline(life, jitter) {
            at if at > now => Next::Wait(at),
            _ => Next::Request("it expires soon".to_owned()),
        },
        // Probably the clock is behind; a new certificate would look the same.
        Err(CertificateError::NotYetValid(_)) => Next::Wait(pair.validity().map_or(now, |life| life.not_before)),
        Err(why) => Next::Request(why.to_string()),
    }
}

fn rotation_deadline(life: Validity, jitter: f64) -> i64 {
    life.at(MIN_ROTATION_FRACTION + ROTATION_JITTER * jitter.clamp(0.0, 1.0))
}

/// The preferred of two certificates: a valid one, then the one that expires later. The start of validity is no
/// criterion: signers backdate it.
pub(super) fn preferred(
    one: Option<CertifiedKey>,
    other: Option<CertifiedKey>,
    wanted: &CertificateTemplate,
    now: i64,
) -> Option<CertifiedKey> {
    let rank = |pair: &CertifiedKey| {
        (pair.check(wanted, now).is_ok(), pair.validity().map_or(i64::MIN, |life| life.not_after))
    };
    match (one, other) {
        (Some(one), Some(other)) => Some(if rank(&other) > rank(&one) { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// The delay after `failures` consecutive failures; `denied` if the request was denied.
pub(super) fn retry_delay(failures: u32, denied: bool, jitter: f64) -> Duration {
    let last = if denied { DENIED_RETRY_MAX } else { RETRY_MAX };
    let delay = windlass_kit::backoff::delay_after(RETRY_MIN, last, failures);
    delay.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 10.0)
}

/// A number in [0, 1] derived from a text.
pub(super) fn jitter_of(text: &str) -> f64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let number = digest.as_ref().iter().take(4).fold(0u32, |number, byte| (number << 8) | u32::from(*byte));
    f64::from(number) / f64::from(u32::MAX)
}
