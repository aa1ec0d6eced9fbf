//! Parsers of kernel files: bytes in, samples out. Pure: no files, no clock, no tokio; they never panic, and leave a
//! field unchanged that is missing or malformed.

use memchr::{memchr, memchr_iter};

pub(crate) mod cgroup;
pub(crate) mod cpu;
pub(crate) mod io;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod oom;
pub(crate) mod pids;
pub(crate) mod psi;

#[cfg(test)]
mod tests;

/// Decimal digits of the trimmed text. None for anything else, `max` and negative numbers included.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// Lines without their ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut begin = 0;
    memchr_iter(b'\n', text).chain([text.len()]).map(move |end| {
        let line = &text[begin..end];
        begin = end + 1;
        line
    })
}

/// Words between blanks.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// `key number` lines.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    lines(text).filter_map(|line| {
        let at = memchr(b' ', line)?;
        Some((&line[..at], number(&line[at..])?))
    })
}
