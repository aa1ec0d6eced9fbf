//! What eviction looks at, read at the moment that it is asked for: by the same formulas and readers as all pages.

use std::path::Path;

use super::{node::max_pids, space};
use crate::{
    model::Filesystem,
    parse::{memory, pids},
};

/// How much there is of something, and how much is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// All of it.
    pub capacity: u64,
    /// Left.
    pub available: u64,
}

/// The signals of the node; `None` what could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeSignals {
    /// Memory: what is left besides the working set.
    pub memory: Option<Capacity>,
    /// Process ids.
    pub pids: Option<Capacity>,
    /// The file system of the node's own data.
    pub node: Option<Filesystem>,
    /// The file system of images and writable layers.
    pub images: Option<Filesystem>,
    /// Whether these two are one; `None` when one of them is unknown.
    pub is_one_file_system: Option<bool>,
}

impl NodeSignals {
    /// Memory alone: cheap enough for every second.
    #[must_use]
    pub fn of_memory() -> Option<Capacity> {
        let text = std::fs::read("/proc/meminfo").ok()?;
        let (used, machine) = memory::machine(&text)?;
        let available = machine.total_bytes.saturating_sub(used.working_set_bytes());
        Some(Capacity { capacity: machine.total_bytes, available })
    }

    /// All of them. A dead file system can hang this.
    #[must_use]
    pub fn read(data_dir: &Path, image_root: Option<&Path>) -> Self {
        let at = jiff::Timestamp::now();
        // Before the first pod the directory may not be there: its parent is on the same file system.
        let of = |dir: &Path| space(dir.ancestors().find(|dir| dir.exists())?, at).ok();
        let (node, images) = (of(data_dir), image_root.and_then(of));
        Self {
            memory: Self::of_memory(),
            pids: pids_left(),
            node: node.map(|(space, _)| space),
            images: images.map(|(space, _)| space),
            is_one_file_system: node.zip(images).map(|((_, node), (_, images))| node == images),
        }
    }
}

fn pids_left() -> Option<Capacity> {
    let capacity = max_pids(Path::new("/"))?;
    let running = pids::machine_threads(&std::fs::read("/proc/loadavg").ok()?)?;
    Some(Capacity { capacity, available: capacity.saturating_sub(running) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine that runs the tests has memory, a disk and processes.
    #[test]
    fn a_real_machine() {
        let dir = tempfile::tempdir().unwrap();
        let all = NodeSignals::read(&dir.path().join("not/there/yet"), Some(Path::new("/proc/self")));
        for (name, seen) in [("memory", all.memory.unwrap()), ("pids", all.pids.unwrap())] {
            assert!(seen.available > 0 && seen.available <= seen.capacity, "{name}: {seen:?}");
        }
        assert!(
            all.node.is_some_and(|space| space.available_bytes <= space.capacity_bytes && space.capacity_bytes > 0)
        );
        assert_eq!(all.images.map(|space| space.inodes), Some(0), "procfs counts no inodes");
        assert_eq!(all.is_one_file_system, Some(false));
        let unknown = NodeSignals::read(dir.path(), None);
        assert_eq!((unknown.images, unknown.is_one_file_system), (None, None));
    }
}
