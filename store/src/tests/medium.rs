//! What a store is kept on in tests: it fails on demand, and keeps what the end of a process or of the power leaves.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{super::Fault, *};

/// What outlives a store.
pub(super) trait Medium {
    /// Opens what is there, as a start does.
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

const PAGE: usize = 4096;

/// A file of which the kernel keeps pages that the disk does not have yet.
#[derive(Debug, Clone, Default)]
struct Inode {
    /// As readers see it.
    shown: Vec<u8>,
    /// As it is after the power was cut.
    kept: Vec<u8>,
    unwritten: BTreeSet<usize>,
}

impl Inode {
    fn write_page(&mut self, page: usize) {
        let (start, end) = (page * PAGE, (page * PAGE + PAGE).min(self.shown.len()));
        if start < end {
            self.kept.resize(self.kept.len().max(end), 0);
            self.kept[start..end].copy_from_slice(&self.shown[start..end]);
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Content {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    /// Those that a cut of the power leaves.
    kept_names: BTreeMap<String, usize>,
    failing_writes: usize,
    failing_syncs: usize,
    /// System calls so far, and which of them fail.
    calls: usize,
    failing_calls: std::ops::Range<usize>,
    /// All but so many bytes are taken.
    free: Option<u64>,
    /// Decides which pages the kernel has written on its own.
    seed: u64,
}

impl Content {
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        if self.failing_calls.contains(&(self.calls - 1)) { Err(io::Error::other("a call has failed")) } else { Ok(()) }
    }

    fn coin(&mut self) -> bool {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 63 == 0
    }
}

/// A disk with one directory.
#[derive(Debug, Clone)]
pub(super) struct Platter {
    content: Arc<Mutex<Content>>,
}

#[derive(Debug)]
pub(super) struct PlatterFile {
    platter: Platter,
    inode: usize,
}

impl Platter {
    pub(super) fn new() -> Self {
        let platter = Self { content: Arc::default() };
        let counters = Counters { revision: 1, ceiling: 1, ..Counters::default() };
        drop(Log::create_in(platter.clone(), &[], &counters).unwrap());
        platter
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// Lets system calls fail, counted from now on.
    pub(super) fn fail_calls(&self, calls: std::ops::Range<usize>) {
        let mut content = self.content();
        content.failing_calls = content.calls + calls.start..content.calls.saturating_add(calls.end);
    }

    pub(super) fn calls(&self) -> usize {
        self.content().calls
    }

    pub(super) fn set_free(&self, bytes: Option<u64>) {
        self.content().free = bytes;
    }

    /// The names of its files.
    pub(super) fn file_names(&self) -> Vec<String> {
        self.content().names.keys().cloned().collect()
    }

    pub(super) fn set_seed(&self, seed: u64) {
        self.content().seed = seed;
    }

    /// The bytes of the only log.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let content = self.content();
        let inode = content.names.iter().find(|(name, _)| name.starts_with("log-")).unwrap().1;
        content.inodes[*inode].shown.clone()
    }

    /// A disk whose log has these bytes.
    pub(super) fn with_bytes(bytes: Vec<u8>) -> Self {
        let platter = Self::new();
        {
            let mut content = platter.content();
            let inode = content.names["log-00000001"];
            content.inodes[inode] = Inode { kept: bytes.clone(), shown: bytes, unwritten: BTreeSet::new() };
        }
        platter
    }
}

impl Medium for Platter {
    fn engine(&self) -> Box<dyn Engine> {
        Box::new(Log::open_in(self.clone()).unwrap())
    }

    fn kill(&mut self) {
        let content = Content { failing_writes: 0, failing_syncs: 0, failing_calls: 0..0, ..self.content().clone() };
        self.content = Arc::new(Mutex::new(content));
    }

    fn cut_power(&mut self) {
        self.kill();
        let mut content = self.content();
        for at in 0..content.inodes.len() {
            for page in std::mem::take(&mut content.inodes[at].unwritten) {
                if content.coin() {
                    content.inodes[at].write_page(page);
                }
            }
            content.inodes[at].shown = content.inodes[at].kept.clone();
        }
        content.names = content.kept_names.clone();
    }

    fn fail(&self, fault: Fault, times: usize) {
        let mut content = self.content();
        match fault {
            Fault::Before => (content.failing_writes, content.failing_syncs) = (times, 0),
            Fault::After => (content.failing_writes, content.failing_syncs) = (0, times),
        }
    }
}

impl Directory for Platter {
    type File = PlatterFile;

    fn path(&self) -> &Path {
        Path::new("platter")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut content = self.content();
        content.call()?;
        Ok(content.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<PlatterFile> {
        let mut content = self.content();
        content.call()?;
        let inode = content.names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(PlatterFile { platter: self.clone(), inode })
    }

    fn create(&self, name: &str) -> io::Result<PlatterFile> {
        let mut content = self.content();
        content.call()?;
        content.inodes.push(Inode::default());
        let inode = content.inodes.len() - 1;
        content.names.insert(name.to_owned(), inode);
        Ok(PlatterFile { platter: self.clone(), inode })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut content = self.content();
        content.call()?;
        let inode = content.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        content.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut content = self.content();
        content.call()?;
        content.names.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.content();
        content.call()?;
        content.kept_names = content.names.clone();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.content().free.unwrap_or(u64::MAX))
    }
}

impl LogFile for PlatterFile {
    fn length(&self) -> io::Result<u64> {
        let mut content = self.platter.content();
        content.call()?;
        Ok(content.inodes[self.inode].shown.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut content = self.platter.content();
        content.call()?;
        let at = usize::try_from(offset).unwrap();
        let bytes = content.inodes[self.inode].shown.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.platter.content();
        let mut result = content.call();
        if content.failing_writes > 0 {
            content.failing_writes -= 1;
            result = Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        // A write that fails may have written a part.
        let written = if result.is_ok() { data.len() } else { data.len() / 2 };
        let (at, inode) = (usize::try_from(offset).unwrap(), &mut content.inodes[self.inode]);
        inode.shown.resize(inode.shown.len().max(at + written), 0);
        inode.shown[at..at + written].copy_from_slice(&data[..written]);
        inode.unwritten.extend(at / PAGE..(at + written).div_ceil(PAGE));
        result
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut content = self.platter.content();
        content.call()?;
        let (length, inode) = (usize::try_from(length).unwrap(), &mut content.inodes[self.inode]);
        inode.shown.truncate(length);
        inode.unwritten.retain(|page| page * PAGE < length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.platter.content();
        let failing = content.failing_syncs > 0;
        content.failing_syncs -= usize::from(failing);
        let result = content.call().and(if failing { Err(io::Error::other("the sync has failed")) } else { Ok(()) });
        let inode = &mut content.inodes[self.inode];
        let unwritten = std::mem::take(&mut inode.unwritten);
        // As the kernel does it: told once, and the pages count as written from then on.
        result?;
        inode.kept.truncate(inode.shown.len());
        for page in unwritten {
            inode.write_page(page);
        }
        Ok(())
    }
}
