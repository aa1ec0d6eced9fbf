//! Generated values: times, uids and names. Imports nothing of `api` but errors.

use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::apiserver::request::error::ApiError;

/// Alphabet of generated names: no vowels, so that no words appear.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Maximum length of the base of a generated name.
const MAX_NAME_BASE_LEN: usize = 58;

pub(crate) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Random bytes. There is no fallback: equal uids would make the garbage collector merge two objects.
fn random<const N: usize>() -> Result<[u8; N], ApiError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| ApiError::internal("the system gives no random numbers"))?;
    Ok(bytes)
}

/// A random number, or 0 without a random source: for positions where a collision does no harm.
pub(crate) fn random_u32() -> u32 {
    random().map_or(0, u32::from_le_bytes)
}

/// A random version 4 identifier.
pub(crate) fn new_uid() -> Result<String, ApiError> {
    let mut b: [u8; 16] = random()?;
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex: String = b.iter().map(|x| format!("{x:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// `base` and five random letters.
pub(crate) fn generated_name(base: &str) -> Result<String, ApiError> {
    let suffix: String =
        random::<5>()?.iter().map(|b| char::from(NAME_ALPHABET[usize::from(*b) % NAME_ALPHABET.len()])).collect();
    let cut: String = base.chars().take(MAX_NAME_BASE_LEN).collect();
    Ok(format!("{cut}{suffix}"))
}
