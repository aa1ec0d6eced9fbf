//! Image garbage collection: which images are removed, and in which order. Pure; upstream's rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::images::ImageSummary;

/// When an image was first seen and last used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImageRecord {
    pub(super) first_seen: Timestamp,
    /// When a container was last seen to use it, if any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_used: Option<Timestamp>,
}

pub(super) type ImageRecords = BTreeMap<String, ImageRecord>;

/// Updates the records from the store and the images in use; records of removed images are dropped.
pub(super) fn update_records(
    records: &mut ImageRecords,
    stored: &[ImageSummary],
    in_use: &BTreeSet<String>,
    now: Timestamp,
) {
    records.retain(|id, _| stored.iter().any(|image| image.id == *id));
    for image in stored {
        let known = records.entry(image.id.clone()).or_insert(ImageRecord { first_seen: now, last_used: None });
        if in_use.contains(&image.id) {
            known.last_used = Some(now);
        }
    }
}

/// The ids of the images that stay: those in use, and, if only the node's `own` may be removed, all others. The store
/// belongs to the machine, not the node: an image that was built or loaded cannot be pulled again.
pub(super) fn kept(
    stored: &[ImageSummary],
    in_use: BTreeSet<String>,
    own: Option<&BTreeSet<String>>,
) -> BTreeSet<String> {
    let foreign = stored.iter().filter(|image| own.is_some_and(|own| !own.contains(&image.id)));
    foreign.map(|image| image.id.clone()).chain(in_use).collect()
}

/// The images that may be removed: never used ones first, then the least recently used; those younger than `age` are
/// left out.
pub(super) fn unused_images<'a>(
    records: &ImageRecords,
    stored: &'a [ImageSummary],
    kept: &BTreeSet<String>,
    age: Duration,
    now: Timestamp,
) -> Vec<&'a ImageSummary> {
    let known = |image: &ImageSummary| records.get(&image.id).copied();
    let mut all: Vec<&ImageSummary> = stored
        .iter()
        .filter(|image| !kept.contains(&image.id))
        .filter(|image| known(image).is_some_and(|k| is_older(k.first_seen, age, now)))
        .collect();
    all.sort_by_key(|image| known(image).map(|k| (k.last_used, k.first_seen)));
    all
}

/// Whether an image has been unused for `age`, counted from when it was first seen if never used; zero disables this.
/// As upstream, not before the node has been up for as long: images may be needed again after downtime, and a wrong
/// clock at boot proves nothing.
pub(super) fn exceeds_max_age(
    records: &ImageRecords,
    image: &ImageSummary,
    age: Duration,
    up_for: Duration,
    now: Timestamp,
) -> bool {
    let unused_since = |known: &ImageRecord| known.last_used.unwrap_or(known.first_seen);
    !age.is_zero() && up_for > age && records.get(&image.id).is_some_and(|k| is_older(unused_since(k), age, now))
}

fn is_older(since: Timestamp, age: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|lasted| lasted >= age)
}

/// Bytes to free: down to the low threshold once the high threshold is reached. Thresholds are percent of the file
/// system in use.
pub(super) fn bytes_to_free(capacity: u64, available: u64, high: u8, low: u8) -> Option<u64> {
    let available = available.min(capacity);
    let used = 100 - available.saturating_mul(100).checked_div(capacity)?;
    let wanted = capacity.saturating_mul(u64::from(100 - low.min(100))) / 100;
    (used >= u64::from(high)).then(|| wanted.saturating_sub(available)).filter(|bytes| *bytes > 0)
}

/// What the event says when `freed` bytes were not enough, of a file system that had `available` bytes before; upstream's
/// words (`pkg/kubelet/images/image_gc_manager.go`).
pub(super) fn insufficient(capacity: u64, available: u64, freed: u64) -> String {
    let used = 100 - available.min(capacity).saturating_mul(100).checked_div(capacity).unwrap_or(0);
    let capacity = size_text(capacity);
    format!(
        "Insufficient free disk space on the node's image filesystem ({used}% of {capacity} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
    )
}

fn size_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    #[allow(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let of = |shift: u32| bytes as f64 / (1_u64 << shift) as f64;
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{:.1} {unit}", of(shift)))
}

/// Whether an image has one of these names or ids.
pub(super) fn has_name(image: &ImageSummary, names: &BTreeSet<String>) -> bool {
    let ids = [image.id.as_str(), image.id.trim_start_matches("sha256:")];
    image.tags.iter().chain(&image.digests).any(|name| names.contains(name)) || ids.iter().any(|id| names.contains(*id))
}

#[cfg(test)]
mod upstream_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str]) -> ImageSummary {
        let tags = tags.iter().map(|t| (*t).to_owned()).collect();
        ImageSummary { id: id.to_owned(), tags, digests: Vec::new(), size: 1 }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn ids(all: &[&ImageSummary]) -> Vec<String> {
        all.iter().map(|i| i.id.clone()).collect()
    }

    #[test]
    fn least_recently_used_images_are_removed_first() {
        let stored = [image("used", &[]), image("old", &[]), image("older", &[]), image("young", &[])];
        let none = BTreeSet::new();
        let mut records = ImageRecords::new();
        update_records(&mut records, &stored[..3], &["old".to_owned(), "used".to_owned()].into(), at(0));
        update_records(&mut records, &stored[..3], &["old".to_owned(), "used".to_owned()].into(), at(60));
        let in_use = BTreeSet::from(["used".to_owned()]);
        update_records(&mut records, &stored, &in_use, at(100));
        let age = Duration::from_secs(30);
        assert_eq!(ids(&unused_images(&records, &stored, &in_use, age, at(120))), ["older", "old"]);
        assert_eq!(ids(&unused_images(&records, &stored, &in_use, age, at(130))), ["older", "young", "old"]);
        update_records(&mut records, &stored[..1], &none, at(140));
        assert_eq!(records.keys().collect::<Vec<_>>(), ["used"], "what is gone is forgotten");
        assert_eq!(records["used"], ImageRecord { first_seen: at(0), last_used: Some(at(100)) });
    }

    #[test]
    fn what_somebody_has_built_stays() {
        let stored = [image("pulled", &[]), image("built", &["app:release"]), image("running", &[])];
        let mut records = ImageRecords::new();
        let in_use = || BTreeSet::from(["running".to_owned()]);
        update_records(&mut records, &stored, &in_use(), at(0));
        let own = BTreeSet::from(["pulled".to_owned(), "running".to_owned()]);
        for (own, removed) in [(Some(&own), vec!["pulled"]), (None, vec!["built", "pulled"])] {
            let kept = kept(&stored, in_use(), own);
            let mut unused = ids(&unused_images(&records, &stored, &kept, Duration::ZERO, at(9)));
            unused.sort();
            assert_eq!(unused, removed);
        }
    }

    #[test]
    fn images_beyond_the_maximum_age_are_removed() {
        let stored = image("i", &[]);
        let records =
            ImageRecords::from([("i".to_owned(), ImageRecord { first_seen: at(0), last_used: Some(at(50)) })]);
        for (age, now, up_for, stale) in [
            (0, 9999, 9999, false),
            (100, 149, 101, false),
            (100, 150, 101, true),
            // It was off for a week, or its clock was wrong.
            (100, 604_800, 0, false),
            (100, 604_800, 100, false),
        ] {
            let (age, up_for) = (Duration::from_secs(age), Duration::from_secs(up_for));
            assert_eq!(exceeds_max_age(&records, &stored, age, up_for, at(now)), stale, "{age:?} {now} {up_for:?}");
        }
    }

    #[test]
    fn thresholds() {
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
            assert_eq!(bytes_to_free(1000, available, high, low), free, "{available} {high} {low}");
        }
        assert_eq!(bytes_to_free(0, 0, 85, 80), None);
    }

    #[test]
    fn what_was_not_enough_is_told_in_upstreams_words() {
        assert_eq!(
            insufficient(100 << 30, 10 << 30, 512),
            "Insufficient free disk space on the node's image filesystem (90% of 100.0 GiB used). Failed to free sufficient space by deleting unused images (freed 512 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        );
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")]
        {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn an_image_matches_by_name_or_id() {
        let names = BTreeSet::from(["nginx:1".to_owned(), "abc".to_owned()]);
        assert!(has_name(&image("sha256:1", &["nginx:1"]), &names) && has_name(&image("sha256:abc", &[]), &names));
        assert!(!has_name(&image("sha256:2", &["nginx:2"]), &names));
    }
}
