//! What a store is kept on in tests: it fails on demand, and keeps what the end of a process or of the power leaves.

use std::{io, path::Path};

use windlass_kit::disk::{self, Open, OpenFile};

use super::{super::Fault, *};

/// What outlives a store.
pub(super) trait Medium {
    /// Opens the existing data, as a start does.
    fn engine(&self) -> Box<dyn Engine>;
    /// The process ends at once: what it still does goes nowhere.
    fn kill(&mut self);
    /// The machine ends at once.
    fn cut_power(&mut self);
    /// Lets so many writes fail.
    fn fail(&self, fault: Fault, times: usize);

    fn start(&self) -> Store {
        Store::open(self.engine(), &RESOURCES).unwrap()
    }
}

impl Medium for Memory {
    fn engine(&self) -> Box<dyn Engine> {
        Box::new(self.clone())
    }

    fn kill(&mut self) {
        *self = self.copy();
    }

    fn cut_power(&mut self) {
        self.kill();
    }

    fn fail(&self, fault: Fault, times: usize) {
        Memory::fail(self, fault, times);
    }
}

/// A disk with one directory.
#[derive(Debug, Clone)]
pub(super) struct Platter(windlass_model_disk::Platter);

#[derive(Debug)]
pub(super) struct PlatterFile(Box<dyn OpenFile>);

impl Platter {
    pub(super) fn new() -> Self {
        let platter = Self(windlass_model_disk::Platter::new());
        let counters = Counters { revision: 1, ceiling: 1, ..Counters::default() };
        drop(Log::create_in(platter.clone(), &[], &counters).unwrap());
        platter.0.settle();
        platter
    }

    /// Has a system call meet a fault, counted from now on.
    pub(super) fn meet(&self, at: usize, fault: windlass_model_disk::Fault) {
        self.0.fail(at, fault);
    }

    /// Whether it has.
    pub(super) fn has_met(&self) -> bool {
        self.0.has_met()
    }

    /// Lets system calls fail, counted from now on.
    pub(super) fn fail_calls(&self, calls: std::ops::Range<usize>) {
        self.0.fail_calls(calls);
    }

    pub(super) fn calls(&self) -> usize {
        self.0.calls()
    }

    pub(super) fn set_free(&self, bytes: Option<u64>) {
        self.0.set_free(bytes);
    }

    /// Has syncs of files wait, or go on.
    pub(super) fn hold_syncs(&self, hold: bool) {
        self.0.hold_syncs(hold);
    }

    pub(super) fn held_syncs(&self) -> usize {
        self.0.held_syncs()
    }

    /// The names of its files.
    pub(super) fn file_names(&self) -> Vec<String> {
        self.0.tree().into_keys().collect()
    }

    pub(super) fn set_seed(&self, seed: u64) {
        self.0.set_seed(seed);
    }

    /// The bytes of the only log.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.tree().into_iter().find(|(name, _)| name.starts_with("log-")).unwrap().1
    }

    /// A disk whose log has these bytes.
    pub(super) fn with_bytes(bytes: Vec<u8>) -> Self {
        let platter = Self::new();
        platter.0.put(&platter.0.root().join("log-00000001"), bytes);
        platter
    }

    fn file(&self, name: &str, how: Open) -> io::Result<PlatterFile> {
        Ok(PlatterFile(self.0.volume().open(&self.0.root().join(name), how)?))
    }
}

impl Medium for Platter {
    fn engine(&self) -> Box<dyn Engine> {
        Box::new(Log::open_in(self.clone()).unwrap())
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn cut_power(&mut self) {
        self.0.cut_power();
    }

    fn fail(&self, fault: Fault, times: usize) {
        let (writes, syncs) = match fault {
            Fault::Before => (times, 0),
            Fault::After => (0, times),
        };
        self.0.fail_writes(writes);
        self.0.fail_syncs(syncs);
    }
}

impl Directory for Platter {
    type File = PlatterFile;

    fn path(&self) -> &Path {
        self.0.root()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.0.volume().names(self.0.root())?;
        Ok(names.into_iter().map(|name| name.into_string().unwrap()).collect())
    }

    fn open(&self, name: &str) -> io::Result<PlatterFile> {
        self.file(name, Open::Update)
    }

    fn create(&self, name: &str) -> io::Result<PlatterFile> {
        self.file(name, Open::Empty(0o600))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.volume().rename(&self.0.root().join(from), &self.0.root().join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.volume().remove(&self.0.root().join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.volume().sync_dir(self.0.root())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.0.free().unwrap_or(u64::MAX))
    }
}

impl LogFile for PlatterFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.read_at(offset, out)? < out.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        disk::write_all_at(&*self.0, offset, data)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
