//! What a store is kept on in tests: it fails on demand, and keeps what the end of a process or of the power leaves.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::StorageBackend;

use super::{
    super::{Fault, Files},
    *,
};

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

    fn open(&self) -> Store {
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
struct Content {
    /// As readers see it.
    shown: Vec<u8>,
    /// As it is after the power was cut.
    kept: Vec<u8>,
    unwritten: BTreeSet<usize>,
    failing_writes: usize,
    failing_syncs: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Platter {
    content: Arc<Mutex<Content>>,
}

impl Platter {
    pub(super) fn new() -> Self {
        let platter = Self { content: Arc::default() };
        drop(Disk::initialize(platter.clone()).unwrap());
        platter
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }
}

impl Medium for Platter {
    fn engine(&self) -> Box<dyn Engine> {
        Box::new(Disk::open_files(self.clone()).unwrap())
    }

    fn kill(&mut self) {
        let content = Content { failing_writes: 0, failing_syncs: 0, ..self.content().clone() };
        self.content = Arc::new(Mutex::new(content));
    }

    fn cut_power(&mut self) {
        let kept = self.content().kept.clone();
        let content = Content { shown: kept.clone(), kept, ..Content::default() };
        self.content = Arc::new(Mutex::new(content));
    }

    fn fail(&self, fault: Fault, times: usize) {
        let mut content = self.content();
        match fault {
            Fault::Before => (content.failing_writes, content.failing_syncs) = (times, 0),
            Fault::After => (content.failing_writes, content.failing_syncs) = (0, times),
        }
    }
}

impl Files for Platter {
    type Backend = Self;

    fn open(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn path(&self) -> &Path {
        Path::new("platter")
    }
}

impl StorageBackend for Platter {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content().shown.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.content().shown[at..at + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut content, len) = (self.content(), usize::try_from(len).unwrap());
        content.shown.resize(len, 0);
        // The length is the file system's, and in its journal.
        content.kept.resize(len, 0);
        content.unwritten.retain(|page| page * PAGE < len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.content();
        let unwritten = std::mem::take(&mut content.unwritten);
        if content.failing_syncs > 0 {
            // As the kernel does it: told once, and the pages count as written from then on.
            content.failing_syncs -= 1;
            return Err(io::Error::other("the sync has failed"));
        }
        for page in unwritten {
            let end = (page * PAGE + PAGE).min(content.shown.len());
            let bytes = content.shown[page * PAGE..end].to_vec();
            content.kept[page * PAGE..end].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.content();
        if content.failing_writes > 0 {
            content.failing_writes -= 1;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let at = usize::try_from(offset).unwrap();
        content.shown[at..at + data.len()].copy_from_slice(data);
        content.unwritten.extend(at / PAGE..=(at + data.len() - 1) / PAGE);
        Ok(())
    }
}
