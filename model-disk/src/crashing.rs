//! The machine's own disk, whose calls below one directory fail, or end the process, by a plan: for steps of which some go
//! to the disk by other ways, such as those of the store.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use windlass_kit::disk::{self, FileSystem, Kind, Open, OpenFile, Real};

use crate::fault::{Fault, Goes, Needs, Plan};

/// The plan of a directory; mounted until this is dropped.
#[derive(Debug)]
pub struct Crashing {
    dir: PathBuf,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Clone)]
struct Volume(Arc<Mutex<Plan>>);

#[derive(Debug)]
struct Handle(Box<dyn OpenFile>, Volume);

impl Crashing {
    /// Of a directory of the machine.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let plan = Arc::default();
        disk::mount(dir, Arc::new(Volume(Arc::clone(&plan))));
        Self { dir: dir.to_owned(), plan }
    }

    fn plan<T>(&self, with: impl FnOnce(&mut Plan) -> T) -> T {
        with(&mut self.plan.lock())
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.plan(|plan| plan.calls())
    }

    /// Has a call meet a fault, counted from now on.
    pub fn fail(&self, at: usize, fault: Fault) {
        self.plan(|plan| plan.set(at, fault));
    }

    /// Whether the fault has met a call.
    #[must_use]
    pub fn has_met(&self) -> bool {
        self.plan(|plan| plan.has_met())
    }

    /// Ends all faults, as a new process on a mended disk has it.
    pub fn mend(&self) {
        self.plan(Plan::mend);
    }
}

impl Drop for Crashing {
    fn drop(&mut self) {
        disk::unmount(&self.dir);
    }
}

impl Volume {
    fn call(&self, needs: Needs) -> io::Result<Goes> {
        self.0.lock().call(needs)
    }
}

impl FileSystem for Volume {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
        self.call(match how {
            Open::Read => Needs::Look,
            Open::Update => Needs::Change,
            Open::New(_) | Open::Empty(_) | Open::Append(_) => Needs::Space,
        })?;
        Ok(Box::new(Handle(Real.open(path, how)?, self.clone())))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.call(Needs::Look)?;
        Real.names(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        self.call(Needs::Look)?;
        Real.kind(path)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.call(Needs::Space)?;
        Real.make_dir(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Needs::Space)?;
        Real.rename(from, to)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.call(Needs::Space)?;
        Real.symlink(target, link)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(Needs::Change)?;
        Real.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Needs::Change)?;
        Real.remove_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(Needs::Change)?;
        Real.sync_dir(dir)
    }
}

impl OpenFile for Handle {
    fn length(&self) -> io::Result<u64> {
        self.1.call(Needs::Look)?;
        self.0.length()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.1.call(Needs::Look)?;
        self.0.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        match self.1.call(Needs::Bytes)? {
            Goes::Well => self.0.write_at(offset, bytes),
            Goes::Short => self.0.write_at(offset, &bytes[..bytes.len().div_ceil(2)]),
        }
    }

    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.1.call(Needs::Bytes)? {
            Goes::Well => self.0.append(bytes),
            Goes::Short => self.0.append(&bytes[..bytes.len().div_ceil(2)]),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.1.call(Needs::Change)?;
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.call(Needs::Space)?;
        self.0.sync()
    }

    fn restrict(&self, mode: u32) -> io::Result<()> {
        self.1.call(Needs::Change)?;
        self.0.restrict(mode)
    }
}
