//! The system calls of the log.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// A directory with the files of a log; replaced in tests.
pub trait Directory: fmt::Debug + Clone + Send + 'static {
    /// An open file.
    type File: LogFile;
    /// Its path, for errors.
    fn path(&self) -> &Path;
    /// The names of its files.
    ///
    /// # Errors
    /// When it cannot be read.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens a file that exists.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Creates an empty file, also in the place of another.
    ///
    /// # Errors
    /// When it cannot be created.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Renames a file, also in the place of another.
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes the names durable.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync(&self) -> io::Result<()>;
    /// How many bytes its file system has room for.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file of a log.
pub trait LogFile: fmt::Debug + Send + 'static {
    /// Its length.
    ///
    /// # Errors
    /// When it cannot be read.
    fn length(&self) -> io::Result<u64>;
    /// Reads exactly as many bytes.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes all bytes.
    ///
    /// # Errors
    /// When the disk fails; some of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file.
    ///
    /// # Errors
    /// When the disk fails.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes content and length durable.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync(&self) -> io::Result<()>;
}

/// Creates a file for its owner alone: secrets are among the objects. It may be in the place of another, or must be new. The
/// only way in which the store makes files.
pub(super) fn create_secret(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).create_new(is_new).truncate(!is_new).mode(0o600);
    options.open(path)
}

/// A directory of a file system.
#[derive(Debug, Clone)]
pub struct RealDirectory(pub PathBuf);

impl Directory for RealDirectory {
    type File = File;

    fn path(&self) -> &Path {
        &self.0
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.0.join(name))
    }

    fn create(&self, name: &str) -> io::Result<File> {
        create_secret(&self.0.join(name), false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let room = rustix::fs::statvfs(&self.0)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }
}

/// A directory whose files are never synced: the kernel writes them when it sees fit, and a crash of the machine may leave a log
/// that is refused. For data that is of no use after one.
#[derive(Debug, Clone)]
pub struct UnsyncedDirectory(pub RealDirectory);

/// A file of it.
#[derive(Debug)]
pub struct UnsyncedFile(File);

impl Directory for UnsyncedDirectory {
    type File = UnsyncedFile;

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn open(&self, name: &str) -> io::Result<UnsyncedFile> {
        self.0.open(name).map(UnsyncedFile)
    }

    fn create(&self, name: &str) -> io::Result<UnsyncedFile> {
        self.0.create(name).map(UnsyncedFile)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }
}

impl LogFile for UnsyncedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        LogFile::read_at(&self.0, offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        LogFile::write_at(&self.0, offset, bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        LogFile::truncate(&self.0, length)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
