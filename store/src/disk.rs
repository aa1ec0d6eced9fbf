//! The engine on disk: redb, one file. A transaction is durable before it is acknowledged.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition, backends::FileBackend,
};

use super::{Counters, Engine, Error, Record};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";
const CEILING: &str = "ceiling";
const FLOOR: &str = "floor";
/// A copy of the revision, written together with the counters below: older programs raise the other one alone.
const COUNTED: &str = "counted";
/// Prefix of a resource's name: the revision of its latest change.
const CHANGED: &str = "changed/";
const SCHEMA: &str = "schema";
/// Version of the tables' layout; raised when older programs can no longer read them.
const SCHEMA_VERSION: u64 = 1;
/// Upper bound of the revisions that a program without a ceiling assigned between two durable writes.
const MAX_UNCOUNTED_REVISIONS: u64 = 1_000_000;
/// Size of redb's cache; small, since all objects are in memory anyway.
const CACHE_BYTES: usize = 1 << 20;
/// Size of the chunks in which a file is rewritten after a failed write, and of the pages that are skipped when empty.
const CHUNK_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// Opens the engine's file; replaced in tests.
pub trait Files: std::fmt::Debug + Send + 'static {
    /// The open file.
    type Backend: StorageBackend;
    /// Opens the existing file.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self) -> io::Result<Self::Backend>;
    /// Its path, for errors.
    fn path(&self) -> &Path;
}

/// One file of a file system.
#[derive(Debug)]
pub struct OneFile(PathBuf);

impl Files for OneFile {
    type Backend = FileBackend;

    fn open(&self) -> io::Result<FileBackend> {
        let file = OpenOptions::new().read(true).write(true).open(&self.0)?;
        FileBackend::new(file).map_err(io::Error::other)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

/// A store in one file.
#[derive(Debug)]
pub struct Disk<F: Files = OneFile> {
    files: F,
    /// `None` after a failed write: [`Engine::restore`] opens it again.
    database: Option<Database>,
}

impl Disk {
    /// Opens an existing file. A file that is not a store of windlass or is damaged is refused and left untouched.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_files(OneFile(path.to_owned()))
    }

    /// Creates the file, which must not exist. An interrupted start leaves none.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let failed = |reason: String| Error::Disk { path: path.to_owned(), attempt: "made", reason };
        if path.exists() {
            return Err(failed("it is there already".to_owned()));
        }
        let partial = path.with_extension("new");
        let created = || -> io::Result<()> {
            match fs::remove_file(&partial) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            OpenOptions::new().write(true).create_new(true).open(&partial)?;
            Ok(())
        };
        created().map_err(|e| failed(e.to_string()))?;
        let files = OneFile(partial.clone());
        drop(Disk::initialize(files)?);
        let renamed = || -> io::Result<()> {
            fs::rename(&partial, path)?;
            // The rename is durable only when the directory is synced.
            File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
        };
        renamed().map_err(|e| failed(e.to_string()))?;
        Self::open(path)
    }
}

impl<F: Files> Disk<F> {
    /// Opens an existing store.
    pub(super) fn open_files(files: F) -> Result<Self, Error> {
        let database = open(&files).map_err(|reason| Error::Disk {
            path: files.path().to_owned(),
            attempt: "opened",
            reason: format!("{reason}; it is left as it is"),
        })?;
        let disk = Self { files, database: Some(database) };
        disk.check_schema()?;
        Ok(disk)
    }

    /// Initializes a store in an empty file.
    pub(super) fn initialize(files: F) -> Result<Self, Error> {
        let mut disk = Self { files, database: None };
        let created = || -> Result<Database, redb::Error> {
            let database = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(disk.files.open()?)?;
            let transaction = database.begin_write()?;
            transaction.open_table(OBJECTS)?;
            let mut meta = transaction.open_table(META)?;
            meta.insert(SCHEMA, SCHEMA_VERSION)?;
            // The first revision is above 0: clients take 0 for "any".
            for counter in [REVISION, CEILING, COUNTED] {
                meta.insert(counter, 1)?;
            }
            drop(meta);
            transaction.commit()?;
            Ok(database)
        };
        disk.database = Some(created().map_err(|e| disk.failed("made")(e.to_string()))?);
        Ok(disk)
    }

    fn failed(&self, attempt: &'static str) -> impl Fn(String) -> Error + '_ {
        move |reason| Error::Disk { path: self.files.path().to_owned(), attempt, reason }
    }

    fn begin_read(&self) -> Result<redb::ReadTransaction, redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::PreviousIo)?;
        Ok(database.begin_read()?)
    }

    /// One transaction: `change` of the objects, and the counters.
    fn write(
        &self,
        counters: &Counters,
        change: impl FnOnce(&mut redb::Table<'_, &'static str, &'static [u8]>) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::PreviousIo)?;
        let transaction = database.begin_write()?;
        {
            change(&mut transaction.open_table(OBJECTS)?)?;
            let mut meta = transaction.open_table(META)?;
            for (counter, value) in [
                (REVISION, counters.revision),
                (COUNTED, counters.revision),
                (CEILING, counters.ceiling),
                (FLOOR, counters.floor),
            ] {
                meta.insert(counter, value)?;
            }
            for (resource, revision) in &counters.changed {
                meta.insert(format!("{CHANGED}{resource}").as_str(), revision)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn check_schema(&self) -> Result<(), Error> {
        let failed = self.failed("read");
        let read = || -> Result<Option<u64>, redb::Error> {
            let transaction = self.begin_read()?;
            Ok(transaction.open_table(META)?.get(SCHEMA)?.map(|v| v.value()))
        };
        match read() {
            Ok(Some(SCHEMA_VERSION)) => Ok(()),
            Ok(Some(other)) => Err(failed(format!(
                "it has layout {other} and this program knows {SCHEMA_VERSION}; use the program that wrote it, or a newer one"
            ))),
            Ok(None) => Err(failed("it is not a store of windlass".to_owned())),
            Err(error) => Err(failed(format!("it is not a store of windlass, or it is damaged: {error}"))),
        }
    }
}

fn open(files: &impl Files) -> Result<Database, String> {
    let backend = files.open().map_err(|e| e.to_string())?;
    if !check_header(&backend)? {
        rewrite_file(&backend).map_err(|e| format!("it could not be written once more: {e}"))?;
    }
    Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend).map_err(|e| e.to_string())
}

/// redb grows its file in whole pages behind a header that states its length. Opening a shorter file would panic or
/// repair it, and an empty one would be initialized again, so both are refused before. The offsets are those of redb's
/// file format: its version is pinned. Returns whether the file was closed cleanly.
fn check_header(backend: &impl StorageBackend) -> Result<bool, String> {
    const MAGIC: [u8; 4] = *b"redb";
    const FLAGS: usize = 9;
    const RECOVERY_REQUIRED: u8 = 2;
    let length = backend.len().map_err(|e| e.to_string())?;
    let mut header = [0; 64];
    if length < 64 {
        return Err(format!("it is only {length} bytes long and no store"));
    }
    backend.read(0, &mut header).map_err(|e| e.to_string())?;
    if header[..4] != MAGIC {
        return Err("it is not a store of windlass".to_owned());
    }
    let number =
        |at: usize| u64::from(u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    // Page size, header pages and data pages of a region, full regions, pages of the last region.
    let (page, header_pages, data_pages, full, last) = (number(12), number(16), number(20), number(24), number(28));
    let wanted = page * (1 + full * (header_pages + data_pages) + if last > 0 { header_pages + last } else { 0 });
    if length < wanted {
        return Err(format!("it is cut short: {length} bytes of {wanted}; restore it from a copy"));
    }
    Ok(header[FLAGS] & RECOVERY_REQUIRED == 0)
}

/// Rewrites the whole file and syncs it. After a failed sync the kernel marks the pages clean: readers see them, but no
/// later sync writes them, so the next one would promise what no disk has. A process cannot know of a failed sync of
/// its predecessor, so every file without a clean end is rewritten.
fn rewrite_file(backend: &impl StorageBackend) -> io::Result<()> {
    let length = backend.len()?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        backend.read(at, &mut chunk[..size])?;
        let mut offset = at;
        for page in chunk[..size].chunks(PAGE_BYTES) {
            // Holes stay holes: filling them could need space that a full disk does not have.
            if page.iter().any(|byte| *byte != 0) {
                backend.write(offset, page)?;
            }
            offset += page.len() as u64;
        }
        at += size as u64;
    }
    backend.sync_data()
}

impl<F: Files> Engine for Disk<F> {
    fn load(&mut self) -> Result<(Vec<Record>, Counters), Error> {
        let failed = self.failed("read");
        let read = || -> Result<(Vec<Record>, Counters), redb::Error> {
            let transaction = self.begin_read()?;
            let mut stored = BTreeMap::new();
            for entry in transaction.open_table(META)?.iter()? {
                let (name, value) = entry?;
                stored.insert(name.value().to_owned(), value.value());
            }
            let counter = |name: &str| stored.get(name).copied().unwrap_or(0);
            let mut counters = Counters {
                revision: counter(REVISION).max(1),
                ceiling: counter(CEILING),
                floor: counter(FLOOR),
                changed: BTreeMap::new(),
            };
            if counter(COUNTED) == counters.revision {
                let changed = stored.iter().filter_map(|(k, v)| Some((k.strip_prefix(CHANGED)?.to_owned(), *v)));
                counters.changed = changed.collect();
            } else {
                // Written by a program that knew no other counter.
                counters.ceiling = counters.ceiling.max(counters.revision + MAX_UNCOUNTED_REVISIONS);
                counters.floor = counters.revision;
            }
            let mut records = Vec::new();
            for entry in transaction.open_table(OBJECTS)?.iter()? {
                let (key, bytes) = entry?;
                records
                    .push(Record { key: key.value().to_owned(), bytes: Some(Bytes::copy_from_slice(bytes.value())) });
            }
            Ok((records, counters))
        };
        read().map_err(|e| failed(e.to_string()))
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        let written = self.write(counters, |objects| {
            for Record { key, bytes } in records {
                match bytes {
                    Some(bytes) => drop(objects.insert(key.as_str(), bytes.as_ref())?),
                    None => drop(objects.remove(key.as_str())?),
                }
            }
            Ok(())
        });
        written.map_err(|error| {
            // After a failed write, such as on a full disk, redb refuses everything until its file is opened again.
            // What the file holds is unknown until then.
            self.database = None;
            self.failed("written")(error.to_string())
        })
    }

    fn restore(&mut self, wanted: &BTreeMap<String, Bytes>, counters: &Counters) -> Result<(), Error> {
        self.database = None;
        self.database = Some(open(&self.files).map_err(self.failed("opened"))?);
        let compared = || -> Result<Vec<String>, redb::Error> {
            let mut surplus = Vec::new();
            let transaction = self.begin_read()?;
            for entry in transaction.open_table(OBJECTS)?.iter()? {
                let (key, _) = entry?;
                if !wanted.contains_key(key.value()) {
                    surplus.push(key.value().to_owned());
                }
            }
            Ok(surplus)
        };
        let restored = compared().and_then(|surplus| {
            self.write(counters, |objects| {
                for key in surplus {
                    objects.remove(key.as_str())?;
                }
                for (key, bytes) in wanted {
                    let same = objects.get(key.as_str())?.is_some_and(|stored| stored.value() == bytes.as_ref());
                    if !same {
                        objects.insert(key.as_str(), bytes.as_ref())?;
                    }
                }
                Ok(())
            })
        });
        restored.map_err(|error| {
            self.database = None;
            self.failed("written")(error.to_string())
        })
    }
}
