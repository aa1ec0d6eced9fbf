//! Answers of other servers that are kept for a while: CoreDNS's `cache 30`. Pure: the time is given.

use std::collections::{BTreeMap, HashMap};

use hickory_proto::{
    op::{Query, ResponseCode},
    rr::{Name, RData, RecordType},
};
use tokio::time::Instant;

use super::answer::Answer;

/// The longest that an answer is kept, in seconds.
pub(super) const MAX_TTL: u32 = 30;
/// Upstream's capacity, of what exists and of what does not together.
const MAX_ANSWERS: usize = 2 * 9984;
/// What all answers together may have as messages, about a third of what they take in memory.
const MAX_BYTES: usize = 8 << 20;

/// What an answer was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    /// Names are equal in letters of either case.
    name: Name,
    record_type: RecordType,
    dnssec_ok: bool,
    checking_disabled: bool,
}

impl CacheKey {
    pub(super) fn new(question: &Query, dnssec_ok: bool, checking_disabled: bool) -> Self {
        Self { name: question.name.clone(), record_type: question.query_type, dnssec_ok, checking_disabled }
    }
}

#[derive(Debug)]
struct Kept {
    answer: Answer,
    stored_at: Instant,
    /// When it ends, and which of those that end then it is.
    ends: (Instant, u64),
    bytes: usize,
}

/// What is kept. The answer that ends first makes room for a new one.
#[derive(Debug, Default)]
pub(super) struct Cache {
    kept: HashMap<CacheKey, Kept>,
    by_end: BTreeMap<(Instant, u64), CacheKey>,
    bytes: usize,
    serial: u64,
}

/// For how many seconds an answer may be kept; `None` if not at all.
pub(super) fn lifetime(answer: &Answer) -> Option<u32> {
    if answer.truncated {
        return None;
    }
    let ttl = match answer.code {
        ResponseCode::NoError if !answer.is_negative() => answer.answers.iter().map(|record| record.ttl).min()?,
        ResponseCode::NoError | ResponseCode::NXDomain => {
            let soa = answer.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            })?;
            answer.answers.iter().map(|record| record.ttl).chain([soa]).min()?
        }
        _ => return None,
    };
    (ttl > 0).then_some(ttl.min(MAX_TTL))
}

impl Cache {
    /// An answer that is still good, with the time that is left of it.
    pub(super) fn get(&self, key: &CacheKey, now: Instant) -> Option<Answer> {
        let kept = self.kept.get(key).filter(|kept| kept.ends.0 > now)?;
        let age = u32::try_from(now.saturating_duration_since(kept.stored_at).as_secs()).unwrap_or(u32::MAX);
        let mut answer = kept.answer.clone();
        answer.age(age);
        Some(answer)
    }

    /// Keeps an answer, whose message has a number of bytes, if it may be kept.
    pub(super) fn put(&mut self, key: CacheKey, answer: &Answer, bytes: usize, now: Instant) {
        let Some(seconds) = lifetime(answer) else { return };
        self.forget(&key);
        self.serial += 1;
        let ends = (now + std::time::Duration::from_secs(seconds.into()), self.serial);
        let mut answer = answer.clone();
        answer.limit_ttl(seconds);
        self.bytes += bytes;
        self.by_end.insert(ends, key.clone());
        self.kept.insert(key, Kept { answer, stored_at: now, ends, bytes });
        while let Some((first, _)) = self.by_end.first_key_value() {
            if first.0 > now && self.kept.len() <= MAX_ANSWERS && self.bytes <= MAX_BYTES {
                return;
            }
            if let Some((_, key)) = self.by_end.pop_first() {
                self.forget(&key);
            }
        }
    }

    fn forget(&mut self, key: &CacheKey) {
        if let Some(old) = self.kept.remove(key) {
            self.by_end.remove(&old.ends);
            self.bytes -= old.bytes;
        }
    }

    /// The number of answers.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let bytes: usize = self.kept.values().map(|kept| kept.bytes).sum();
        self.kept.len() == self.by_end.len() && bytes == self.bytes && bytes <= MAX_BYTES && self.len() <= MAX_ANSWERS
    }
}
