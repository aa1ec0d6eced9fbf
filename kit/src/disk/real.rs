//! The machine's file system.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use super::{FileSystem, Kind, Open, OpenFile};

/// The machine's file system.
#[derive(Debug, Clone, Copy)]
pub struct Real;

impl FileSystem for Real {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        match how {
            Open::Read => options.read(true),
            Open::Update => options.read(true).write(true),
            Open::New(mode) => options.read(true).write(true).create_new(true).mode(mode),
            Open::Empty(mode) => options.read(true).write(true).create(true).truncate(true).mode(mode),
            Open::Append(mode) => options.append(true).create(true).mode(mode),
        };
        Ok(Box::new(options.open(path)?))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let found = fs::symlink_metadata(path)?.file_type();
        let other = if found.is_symlink() { Kind::Link } else { Kind::File };
        Ok(if found.is_dir() { Kind::Directory } else { other })
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        DirBuilder::new().mode(mode).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        symlink(target, link)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl OpenFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self;
        file.write(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn restrict(&self, mode: u32) -> io::Result<()> {
        let metadata = self.metadata()?;
        let is = metadata.permissions().mode() & 0o7777;
        if is & !mode != 0 && metadata.is_file() {
            self.set_permissions(Permissions::from_mode(is & mode))?;
        }
        Ok(())
    }
}
