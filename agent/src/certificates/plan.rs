//! When a certificate is asked for. Pure: time and chance are given as values.

use std::time::Duration;

use super::pair::{Life, Pair, Unfit, Wanted};

/// Renewal comes at a share of the life between these, so that nodes that began together do not renew together.
const EARLIEST: f64 = 0.7;
const SPREAD: f64 = 0.2;
/// Upstream's: from 2 s doubling five times, then each 32 s, with a tenth of jitter.
const FIRST: Duration = Duration::from_secs(2);
const LAST: Duration = Duration::from_secs(32);
/// What was refused by somebody is asked for ever more seldom, up to here: each is a new object that he sees.
const REFUSED_LAST: Duration = Duration::from_secs(300);

/// What is to be done about a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until this moment, in seconds since 1970.
    Wait(i64),
    /// Ask for one, for this reason.
    Ask(String),
    /// Nothing ever: it is good and not to be renewed.
    Rest,
}

/// What is next for `current` at `now`. `chance` is between 0 and 1, the same for one certificate.
pub(super) fn next(current: Option<&Pair>, wanted: &Wanted, renew: bool, chance: f64, now: i64) -> Next {
    let Some(pair) = current else { return Next::Ask("there is none yet".to_owned()) };
    match pair.check(wanted, now) {
        Ok(_) if !renew => Next::Rest,
        Ok(life) => match renewal(life, chance) {
            at if at > now => Next::Wait(at),
            _ => Next::Ask("it ends soon".to_owned()),
        },
        // A clock that is behind makes it look so; another certificate would look the same.
        Err(Unfit::NotYet(_)) => Next::Wait(pair.life().map_or(now, |life| life.begins)),
        Err(why) => Next::Ask(why.to_string()),
    }
}

fn renewal(life: Life, chance: f64) -> i64 {
    life.at(EARLIEST + SPREAD * chance.clamp(0.0, 1.0))
}

/// The better of two for the same: a good one before one that is not, then the one that ends later. When it begins says
/// nothing: signers put that some minutes back, so that a new one can begin before the old one did.
pub(super) fn better(one: Option<Pair>, other: Option<Pair>, wanted: &Wanted, now: i64) -> Option<Pair> {
    let rank = |pair: &Pair| (pair.check(wanted, now).is_ok(), pair.life().map_or(i64::MIN, |life| life.ends));
    match (one, other) {
        (Some(one), Some(other)) => Some(if rank(&other) > rank(&one) { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// How long is waited after `failures` tries in a row that came to nothing; `refused`: because somebody said no.
pub(super) fn delay(failures: u32, refused: bool, chance: f64) -> Duration {
    let last = if refused { REFUSED_LAST } else { LAST };
    let delay = windlass_kit::backoff::delay_after(FIRST, last, failures);
    delay.mul_f64(1.0 + chance.clamp(0.0, 1.0) / 10.0)
}

/// A number between 0 and 1 that is the same for the same text.
pub(super) fn chance_of(text: &str) -> f64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let number = digest.as_ref().iter().take(4).fold(0u32, |number, byte| (number << 8) | u32::from(*byte));
    f64::from(number) / f64::from(u32::MAX)
}
