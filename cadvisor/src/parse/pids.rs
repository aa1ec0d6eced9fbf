//! Tasks: `pids.current`, `cgroup.procs`, `/proc/loadavg`.

use super::{lines, number, words};

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
