//! Tasks: `pids.current`, `cgroup.procs`, `/proc/loadavg`.

use super::{lines, number, words};
use crate::model::Tasks;

/// Non-empty lines: the processes in `cgroup.procs`.
pub(crate) fn count(text: &[u8]) -> u64 {
    lines(text).filter(|line| !line.is_empty()).count().try_into().unwrap_or(u64::MAX)
}

/// The process ids in `cgroup.procs`.
pub(crate) fn ids(text: &[u8]) -> impl Iterator<Item = u64> {
    lines(text).filter_map(number)
}

/// Scheduling entities that exist: behind the slash in the fourth word of `/proc/loadavg`.
pub(crate) fn machine_threads(text: &[u8]) -> Option<u64> {
    let word = words(text).nth(3)?;
    let slash = word.iter().position(|byte| *byte == b'/')?;
    number(word.get(slash + 1..)?)
}

/// Adds the state in `/proc/PID/stat`. The name before it may contain anything, up to the last parenthesis.
pub(crate) fn state(stat: &[u8], tasks: &mut Tasks) {
    let after = stat.iter().rposition(|byte| *byte == b')').and_then(|close| stat.get(close + 1..));
    match after.and_then(|rest| rest.trim_ascii_start().first()) {
        Some(b'R') => tasks.running += 1,
        Some(b'S' | b'I') => tasks.sleeping += 1,
        Some(b'D') => tasks.uninterruptible += 1,
        Some(b'T' | b't') => tasks.stopped += 1,
        _ => {}
    }
}

/// Load over 1, 5 and 15 minutes, from `/proc/loadavg`.
pub(crate) fn load(text: &[u8]) -> [f64; 3] {
    let mut words = words(text).map(|word| std::str::from_utf8(word).ok().and_then(|w| w.parse().ok()).unwrap_or(0.0));
    std::array::from_fn(|_| words.next().unwrap_or(0.0))
}
