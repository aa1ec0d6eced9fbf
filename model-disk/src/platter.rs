//! A disk in memory with a file system on it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use windlass_kit::disk::{self, FileSystem};

use crate::{
    fault::Fault,
    inode::{Chance, Content, Inode},
    state::State,
    volume::{Gate, Shared, Volume},
};

/// A disk, mounted at a path of its own until the last of its handles is gone. The kernel shows at once what is written; what
/// was not synced is lost in any part when the power is cut: sectors, lengths, and names, each by itself.
#[derive(Debug, Clone)]
pub struct Platter {
    state: Shared,
    gate: Gate,
    mounted: Arc<Mounted>,
}

#[derive(Debug)]
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        disk::unmount(&self.0);
    }
}

impl Default for Platter {
    fn default() -> Self {
        Self::new()
    }
}

impl Platter {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let root = PathBuf::from(format!("/model-disk/{}", COUNT.fetch_add(1, Ordering::SeqCst)));
        let platter =
            Self { state: Arc::new(Mutex::new(State::new())), gate: Gate::default(), mounted: Arc::new(Mounted(root)) };
        platter.mount();
        platter
    }

    fn mount(&self) {
        disk::mount(self.root(), self.volume());
    }

    /// Where it is mounted.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.mounted.0
    }

    /// Its file system as it is now: after [`Self::kill`] its writes have no effect.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn FileSystem> {
        let (state, gate) = (Arc::clone(&self.state), Arc::clone(&self.gate));
        Arc::new(Volume { root: self.root().to_owned(), state, gate })
    }

    /// System calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state.lock().plan.calls()
    }

    /// Has a call meet a fault, counted from now on.
    pub fn fail(&self, at: usize, fault: Fault) {
        self.state.lock().plan.set(at, fault);
    }

    /// Has all calls of a range fail, counted from now on.
    pub fn fail_calls(&self, calls: std::ops::Range<usize>) {
        self.state.lock().plan.set_range(calls);
    }

    /// Has so many writes fail for want of space, after a part of them.
    pub fn fail_writes(&self, times: usize) {
        self.state.lock().failing_writes = times;
    }

    /// Has so many syncs of files fail.
    pub fn fail_syncs(&self, times: usize) {
        self.state.lock().failing_syncs = times;
    }

    /// Whether the fault has met a call.
    #[must_use]
    pub fn has_met(&self) -> bool {
        self.state.lock().plan.has_met()
    }

    /// Says how much room there is.
    pub fn set_free(&self, bytes: Option<u64>) {
        self.state.lock().free = bytes;
    }

    /// The same.
    #[must_use]
    pub fn free(&self) -> Option<u64> {
        self.state.lock().free
    }

    /// Decides what a cut of the power and a failing sync leave.
    pub fn set_seed(&self, seed: u64) {
        self.state.lock().chance = Chance(seed);
    }

    /// Has syncs of files wait, or go on.
    pub fn hold_syncs(&self, hold: bool) {
        self.gate.0.lock().0 = hold;
        self.gate.1.notify_all();
    }

    /// How many syncs wait.
    #[must_use]
    pub fn held_syncs(&self) -> usize {
        self.gate.0.lock().1
    }

    /// The process ends at once: its further calls have no effect. The next one has a disk without faults.
    pub fn kill(&mut self) {
        let mut state = self.state.lock().clone();
        state.plan.mend();
        (state.failing_writes, state.failing_syncs) = (0, 0);
        (self.state, self.gate) = (Arc::new(Mutex::new(state)), Gate::default());
        self.mount();
    }

    /// The machine ends at once.
    pub fn cut_power(&mut self) {
        self.kill();
        self.state.lock().cut_power();
    }

    /// All that was written becomes durable, as after a while.
    pub fn settle(&self) {
        self.state.lock().settle();
    }

    /// All files and links with what is in them, and directories that are empty, by their paths below the root. No call.
    #[must_use]
    pub fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.lock().tree()
    }

    /// Gives a file this durable content. No call.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        let found = state.find(self.root(), path, true);
        match found.map(|inode| &mut state.inodes[inode]) {
            Ok(Inode::File(content, _)) => *content = Content::durable(bytes),
            other => panic!("{} is no file: {other:?}", path.display()),
        }
    }
}
