//! Pressure stall information: `cpu.pressure`, `memory.pressure`, `io.pressure`, `/proc/pressure/*`.

use super::{lines, number, words};
use crate::model::{Psi, PsiLine};

/// Parses both lines. `None` without a `some` line (PSI is not supported).
pub(crate) fn pressure(text: &[u8]) -> Option<Psi> {
    let mut psi = Psi::default();
    let mut found = false;
    for line in lines(text) {
        let mut words = words(line);
        let stall = match words.next() {
            Some(b"some") => {
                found = true;
                &mut psi.some
            }
            Some(b"full") => &mut psi.full,
            _ => continue,
        };
        *stall = psi_line(words);
    }
    found.then_some(psi)
}

fn psi_line<'a>(words: impl Iterator<Item = &'a [u8]>) -> PsiLine {
    let mut stall = PsiLine::default();
    for word in words {
        let Some(equals) = word.iter().position(|byte| *byte == b'=') else { continue };
        let (key, value) = word.split_at(equals);
        let value = value.get(1..).unwrap_or_default();
        match key {
            b"avg10" => stall.avg10 = percent(value),
            b"avg60" => stall.avg60 = percent(value),
            b"avg300" => stall.avg300 = percent(value),
            b"total" => stall.total_us = number(value).unwrap_or(0),
            _ => {}
        }
    }
    stall
}

/// The kernel writes two decimals. Hundredths are exact, so that their quotient is the number of the text.
fn percent(text: &[u8]) -> f64 {
    let hundredths = || {
        let [whole @ .., b'.', tens, ones] = text else { return None };
        u32::try_from(number(whole)?.checked_mul(100)?.checked_add(number(&[*tens, *ones])?)?).ok()
    };
    hundredths().map_or(0.0, |hundredths| f64::from(hundredths) / 100.0)
}
