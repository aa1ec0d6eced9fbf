//! Short hashes in names and labels of what a controller makes of a template. Pure.

/// What they are written in: no vowels, so no words. Upstream: `SafeEncodeString` in `apimachinery/pkg/util/rand`.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of some bytes: FNV-1a in 32 bits, as upstream's over another form of the template.
pub(super) fn safe_hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}
