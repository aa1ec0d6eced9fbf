//! Sets of completion indexes as a Job's status writes them: `0-3,5`. Pure.

use std::fmt;

/// Indexes as intervals in increasing order, of which no two touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Indexes {
    /// First and last of each interval.
    intervals: Vec<(i32, i32)>,
}

impl Indexes {
    /// Reads the indexes below `completions`. What is no index is left out, as upstream does it: a status can hold anything.
    pub(crate) fn parse(text: &str, completions: i32) -> Self {
        let intervals = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
            Some((first, last.min(completions.saturating_sub(1))))
        });
        Self::of_intervals(intervals.filter(|(first, last)| (0..=*last).contains(first)).collect())
    }

    fn of_intervals(mut all: Vec<(i32, i32)>) -> Self {
        all.sort_unstable();
        let mut intervals: Vec<(i32, i32)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match intervals.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => intervals.push((first, last)),
            }
        }
        Self { intervals }
    }

    /// The number of indexes.
    pub(crate) fn total(&self) -> i32 {
        self.intervals.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub(crate) fn has(&self, index: i32) -> bool {
        let after = self.intervals.partition_point(|(first, _)| *first <= index);
        after > 0 && self.intervals[after - 1].1 >= index
    }

    /// These indexes and those of another set.
    pub(crate) fn and(&self, others: &Self) -> Self {
        Self::of_intervals(self.intervals.iter().chain(&others.intervals).copied().collect())
    }

    /// The number of indexes that are in both sets.
    pub(crate) fn common(&self, other: &Self) -> i32 {
        let (mut ours, mut theirs) = (self.intervals.iter().peekable(), other.intervals.iter().peekable());
        let mut count = 0;
        while let (Some((first, last)), Some((from, to))) = (ours.peek(), theirs.peek()) {
            count += (last.min(to) - first.max(from) + 1).max(0);
            if last <= to {
                ours.next();
            } else {
                theirs.next();
            }
        }
        count
    }

    /// The first `count` indexes below `completions` that are not in the set.
    pub(crate) fn missing(&self, completions: i32, count: usize) -> Vec<i32> {
        let ends = self.intervals.iter().copied().chain([(completions, completions)]);
        let mut from = 0;
        let gaps = ends.flat_map(|(first, last)| {
            let gap = from..first.min(completions);
            from = last.saturating_add(1);
            gap
        });
        gaps.take(count).collect()
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self::of_intervals(indexes.into_iter().map(|index| (index, index)).collect())
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.intervals.iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}
