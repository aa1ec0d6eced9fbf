//! The eviction signals, of what cadvisor reads from the machine; `state` evaluates them. Pure.

use std::collections::BTreeMap;

use windlass_cadvisor::{Capacity, NodeSignals, model::Sample};
use windlass_kit::moment::Moment;

use super::thresholds::Signal;

/// Capacity and available amount of one signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Observation {
    /// Available; bytes, inodes or processes.
    pub(super) available: i64,
    /// Capacity.
    pub(super) capacity: i64,
}

/// The observation of each signal; one that could not be read is absent.
pub(super) type Observations = BTreeMap<Signal, Observation>;

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn observation(of: Capacity) -> Observation {
    Observation { available: number(of.available), capacity: number(of.capacity) }
}

/// The signals of the machine, all but the pods' memory.
pub(super) fn observations(read: &NodeSignals) -> Observations {
    let mut all = BTreeMap::new();
    let mut put = |signal, of: Option<Capacity>| all.extend(of.map(|of| (signal, observation(of))));
    put(Signal::Memory, read.memory);
    put(Signal::Pid, read.pids);
    for (space, bytes, inodes) in
        [(read.node, Signal::NodeFs, Signal::NodeFsInodes), (read.images, Signal::ImageFs, Signal::ImageFsInodes)]
    {
        let Some(space) = space else { continue };
        put(bytes, Some(Capacity { capacity: space.capacity_bytes, available: space.available_bytes }));
        // Some file systems allocate inodes dynamically.
        let files = Capacity { capacity: space.inodes, available: space.inodes_free };
        put(inodes, Some(files).filter(|files| files.capacity > 0));
    }
    all
}

/// The memory that all pods together have left of their limit; unknown while a sample is older than `released`, when the
/// last evicted pod was gone.
pub(super) fn allocatable_memory(limit: i64, samples: &[&Sample], released: Moment) -> Option<Observation> {
    if samples.iter().any(|sample| sample.moment.mono_ns < released.mono_ns) {
        return None;
    }
    let working_sets = samples.iter().filter_map(|sample| sample.memory).map(|memory| memory.working_set_bytes());
    let used = working_sets.fold(0, u64::saturating_add);
    Some(Observation { available: limit.saturating_sub(number(used)), capacity: limit })
}

#[cfg(test)]
mod tests {
    use windlass_cadvisor::model::{Filesystem, Memory};

    use super::*;

    #[test]
    fn what_could_not_be_read_is_no_signal() {
        assert!(observations(&NodeSignals::default()).is_empty());
        let space = Filesystem {
            at: jiff::Timestamp::UNIX_EPOCH,
            capacity_bytes: 100,
            available_bytes: 40,
            used_bytes: 55,
            inodes: 0,
            inodes_free: 0,
        };
        let memory = Some(Capacity { capacity: 10, available: 7 });
        let read = NodeSignals { node: Some(space), memory, ..NodeSignals::default() };
        let found = observations(&read);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&Signal::Memory, &Signal::NodeFs], "no inodes are counted");
        assert_eq!(found[&Signal::NodeFs], Observation { available: 40, capacity: 100 });
        assert_eq!(found[&Signal::Memory], Observation { available: 7, capacity: 10 });
    }

    #[test]
    fn allocatable_memory_of_pods() {
        let at = |mono_ns| Moment { mono_ns, ..Moment::ZERO };
        let sample = |mono_ns, usage_bytes| Sample {
            memory: Some(Memory { usage_bytes, ..Memory::default() }),
            ..Sample::empty(at(mono_ns))
        };
        let left =
            |samples: &[&Sample], released| allocatable_memory(100, samples, at(released)).map(|left| left.available);
        let (old, new) = (sample(5, 30), sample(9, 50));
        assert_eq!(left(&[&old, &new], 5), Some(20));
        assert_eq!(left(&[&sample(9, 130)], 5), Some(-30));
        // What was measured before the last evicted pod was gone evicts no other one.
        assert_eq!([left(&[&old, &new], 6), left(&[&new], 6)], [None, Some(50)]);
        assert_eq!(left(&[&Sample::empty(at(9))], 5), Some(100), "without the memory controller");
    }
}
