//! The machine's file system without waiting for the disk, for data that is of no use after a crash of the machine.

use std::{ffi::OsString, io, path::Path};

use super::{FileSystem, Kind, Open, OpenFile, Real};

/// The machine's file system, which the kernel writes to the disk when it sees fit.
#[derive(Debug, Clone, Copy)]
pub struct Unsynced;

#[derive(Debug)]
struct UnsyncedFile(Box<dyn OpenFile>);

impl FileSystem for Unsynced {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(UnsyncedFile(Real.open(path, how)?)))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        Real.names(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        Real.kind(path)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        Real.make_dir(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Real.rename(from, to)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        Real.symlink(target, link)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Real.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Real.remove_dir(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        Real.remove_tree(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl OpenFile for UnsyncedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(offset, bytes)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn restrict(&self, mode: u32) -> io::Result<()> {
        self.0.restrict(mode)
    }
}
