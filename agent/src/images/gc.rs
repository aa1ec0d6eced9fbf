//! Which images go, and in which order. Pure; rules are upstream's.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::images::Stored;

/// What is remembered of an image, by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Known {
    pub(super) first_seen: Timestamp,
    /// When a container was last seen to use it; before any did, when it was first seen.
    pub(super) last_used: Timestamp,
}

pub(super) type Memory = BTreeMap<String, Known>;

/// Takes in what is there now and what is in use; forgets what is gone.
pub(super) fn note(memory: &mut Memory, stored: &[Stored], in_use: &BTreeSet<String>, now: Timestamp) {
    memory.retain(|id, _| stored.iter().any(|image| image.id == *id));
    for image in stored {
        let known = memory.entry(image.id.clone()).or_insert(Known { first_seen: now, last_used: now });
        if in_use.contains(&image.id) {
            known.last_used = now;
        }
    }
}

/// The images that may go, the one that was not used for longest first; those that are younger than `age` stay.
pub(super) fn unused<'a>(
    memory: &Memory,
    stored: &'a [Stored],
    in_use: &BTreeSet<String>,
    age: Duration,
    now: Timestamp,
) -> Vec<&'a Stored> {
    let known = |image: &Stored| memory.get(&image.id).copied();
    let mut all: Vec<&Stored> = stored
        .iter()
        .filter(|image| !in_use.contains(&image.id))
        .filter(|image| known(image).is_some_and(|k| older(k.first_seen, age, now)))
        .collect();
    all.sort_by_key(|image| known(image).map(|k| (k.last_used, k.first_seen)));
    all
}

/// Whether an unused image has not been used for too long; an age of zero means that none is.
pub(super) fn is_stale(memory: &Memory, image: &Stored, age: Duration, now: Timestamp) -> bool {
    !age.is_zero() && memory.get(&image.id).is_some_and(|k| older(k.last_used, age, now))
}

fn older(since: Timestamp, age: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|lasted| lasted >= age)
}

/// Bytes to be freed: down to the low mark once the high one is reached. Marks are percent of the file system in use.
pub(super) fn to_free(capacity: u64, available: u64, high: u8, low: u8) -> Option<u64> {
    let available = available.min(capacity);
    let used = 100 - available.saturating_mul(100).checked_div(capacity)?;
    let wanted = capacity.saturating_mul(u64::from(100 - low.min(100))) / 100;
    (used >= u64::from(high)).then(|| wanted.saturating_sub(available)).filter(|bytes| *bytes > 0)
}

/// Whether an image is what a pod calls by one of these names.
pub(super) fn is_called(image: &Stored, names: &BTreeSet<String>) -> bool {
    let ids = [image.id.as_str(), image.id.trim_start_matches("sha256:")];
    image.tags.iter().chain(&image.digests).any(|name| names.contains(name)) || ids.iter().any(|id| names.contains(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str]) -> Stored {
        let tags = tags.iter().map(|t| (*t).to_owned()).collect();
        Stored { id: id.to_owned(), tags, digests: Vec::new(), size: 1 }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn ids(all: &[&Stored]) -> Vec<String> {
        all.iter().map(|i| i.id.clone()).collect()
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let stored = [image("used", &[]), image("old", &[]), image("older", &[]), image("young", &[])];
        let none = BTreeSet::new();
        let mut memory = Memory::new();
        note(&mut memory, &stored[..3], &["old".to_owned(), "used".to_owned()].into(), at(0));
        note(&mut memory, &stored[..3], &["old".to_owned(), "used".to_owned()].into(), at(60));
        let in_use = BTreeSet::from(["used".to_owned()]);
        note(&mut memory, &stored, &in_use, at(100));
        let age = Duration::from_secs(30);
        assert_eq!(ids(&unused(&memory, &stored, &in_use, age, at(120))), ["older", "old"]);
        assert_eq!(ids(&unused(&memory, &stored, &in_use, age, at(130))), ["older", "old", "young"]);
        note(&mut memory, &stored[..1], &none, at(140));
        assert_eq!(memory.keys().collect::<Vec<_>>(), ["used"], "what is gone is forgotten");
        assert_eq!(memory["used"], Known { first_seen: at(0), last_used: at(100) });
    }

    #[test]
    fn stale_images_go_whatever_room_there_is() {
        let stored = image("i", &[]);
        let memory = Memory::from([("i".to_owned(), Known { first_seen: at(0), last_used: at(50) })]);
        for (age, now, stale) in [(0, 9999, false), (100, 149, false), (100, 150, true)] {
            assert_eq!(is_stale(&memory, &stored, Duration::from_secs(age), at(now)), stale, "{age} {now}");
        }
    }

    #[test]
    fn marks() {
        for (available, high, low, free) in [
            (160, 85, 80, None),
            (150, 85, 80, Some(50)),
            (0, 85, 80, Some(200)),
            (999, 0, 0, Some(1)),
            (1000, 0, 0, None),
            (0, 100, 80, Some(200)),
            (10, 100, 80, None),
            // Beyond the capacity, as some file systems have it.
            (2000, 85, 80, None),
        ] {
            assert_eq!(to_free(1000, available, high, low), free, "{available} {high} {low}");
        }
        assert_eq!(to_free(0, 0, 85, 80), None);
    }

    #[test]
    fn an_image_is_called_by_name_or_id() {
        let names = BTreeSet::from(["nginx:1".to_owned(), "abc".to_owned()]);
        assert!(is_called(&image("sha256:1", &["nginx:1"]), &names) && is_called(&image("sha256:abc", &[]), &names));
        assert!(!is_called(&image("sha256:2", &["nginx:2"]), &names));
    }
}
