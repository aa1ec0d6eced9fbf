//! The engine on disk: redb, one file. A transaction is on disk before it is answered.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::{Engine, Error, Record};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";
const SCHEMA: &str = "schema";
/// The layout of the tables; raised when an older program could no longer read them.
const SCHEMA_VERSION: u64 = 1;
/// All objects are in memory anyway, so the engine's own cache need not be large.
const CACHE: usize = 1 << 20;

/// A store in one file.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    /// `None` after something could not be written: it is opened anew then.
    database: Option<Database>,
    /// What was written lazily since the last write that is known to be on disk, by key. A file that is opened anew does not
    /// have it.
    unsynced: BTreeMap<String, Option<Bytes>>,
}

impl Disk {
    /// Opens the file, or makes it when it does not exist. An existing file that is not a store of ours, or
    /// that is damaged, is refused and left as it is.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |attempt: &'static str, reason: String| Error::Disk { path: path.to_owned(), attempt, reason };
        let there = path.exists();
        let database = if there {
            open_existing(path)
        } else {
            Database::builder().set_cache_size(CACHE).create(path).map_err(|e| e.to_string())
        };
        let database = database.map_err(|reason| failed("opened", format!("{reason}; it is left as it is")))?;
        let disk = Self { path: path.to_owned(), database: Some(database), unsynced: BTreeMap::new() };
        if there {
            disk.check_schema()?
        } else {
            disk.begin_schema()?
        }
        Ok(disk)
    }

    fn failed(&self, attempt: &'static str) -> impl Fn(String) -> Error + '_ {
        move |reason| Error::Disk { path: self.path.clone(), attempt, reason }
    }

    /// As after a write that has failed.
    #[cfg(test)]
    pub(super) fn lose(&mut self) {
        self.database = None;
    }

    fn begin_read(&self) -> Result<redb::ReadTransaction, redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::PreviousIo)?;
        Ok(database.begin_read()?)
    }

    fn begin_write(&self) -> Result<redb::WriteTransaction, redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::PreviousIo)?;
        Ok(database.begin_write()?)
    }

    fn write(&self, records: &[Record], revision: u64, lazy: bool) -> Result<(), redb::Error> {
        let mut transaction = self.begin_write()?;
        if lazy {
            transaction.set_durability(Durability::None)?;
        }
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let unsynced = self.unsynced.iter().filter(|_| !lazy).map(|(key, bytes)| (key.as_str(), bytes));
            for (key, bytes) in unsynced.chain(records.iter().map(|r| (r.key.as_str(), &r.bytes))) {
                match bytes {
                    Some(bytes) => drop(objects.insert(key, bytes.as_ref())?),
                    None => drop(objects.remove(key)?),
                }
            }
            transaction.open_table(META)?.insert(REVISION, revision)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn begin_schema(&self) -> Result<(), Error> {
        let failed = self.failed("made");
        let made = || -> Result<(), redb::Error> {
            let transaction = self.begin_write()?;
            transaction.open_table(OBJECTS)?;
            let mut meta = transaction.open_table(META)?;
            meta.insert(SCHEMA, SCHEMA_VERSION)?;
            // A first revision above 0: clients take 0 for "any".
            meta.insert(REVISION, 1)?;
            drop(meta);
            transaction.commit()?;
            Ok(())
        };
        made().map_err(|e| failed(e.to_string()))
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

fn open_existing(path: &Path) -> Result<Database, String> {
    let length = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    check_length(path, length)?;
    Database::builder().set_cache_size(CACHE).open(path).map_err(|e| e.to_string())
}

/// redb grows its file in whole pages behind a header that says how long it must be; opening a shorter one
/// would end in a panic or a repair, so it is refused before.
fn check_length(path: &Path, length: u64) -> Result<(), String> {
    use std::io::Read as _;
    const MAGIC: [u8; 4] = *b"redb";
    let mut header = [0; 64];
    let mut file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.read_exact(&mut header)
        .map_err(|_| format!("it is only {length} bytes long and no store; it is left as it is"))?;
    if header[..4] != MAGIC {
        return Err("it is not a store of windlass; it is left as it is".to_owned());
    }
    let number =
        |at: usize| u64::from(u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    // Offsets of redb's file format: page size, header pages and data pages of a region, full regions, pages
    // of the last one.
    let (page, head, most, full, last) = (number(12), number(16), number(20), number(24), number(28));
    let wanted = page * (1 + full * (head + most) + if last > 0 { head + last } else { 0 });
    if length < wanted {
        return Err(format!(
            "it is cut short: {length} bytes of {wanted}; restore it from a copy; it is left as it is"
        ));
    }
    Ok(())
}

impl Engine for Disk {
    fn load(&mut self) -> Result<(Vec<Record>, u64), Error> {
        let failed = self.failed("read");
        let read = || -> Result<(Vec<Record>, u64), redb::Error> {
            let transaction = self.begin_read()?;
            let revision = transaction.open_table(META)?.get(REVISION)?.map_or(1, |v| v.value());
            let mut records = Vec::new();
            for entry in transaction.open_table(OBJECTS)?.iter()? {
                let (key, bytes) = entry?;
                records
                    .push(Record { key: key.value().to_owned(), bytes: Some(Bytes::copy_from_slice(bytes.value())) });
            }
            Ok((records, revision))
        };
        read().map_err(|e| failed(e.to_string()))
    }

    fn commit(&mut self, records: &[Record], revision: u64, lazy: bool) -> Result<(), Error> {
        // The engine takes nothing any more after a write that has failed, such as on a full disk, until its file is opened
        // anew. Its file is then as after the last write that worked.
        let reopened = self.database.is_none();
        if reopened {
            self.database = Some(open_existing(&self.path).map_err(self.failed("opened"))?);
        }
        // What the file lost when it was opened anew goes with the first write.
        let lazy = lazy && !reopened;
        if let Err(error) = self.write(records, revision, lazy) {
            self.database = None;
            return Err(self.failed("written")(error.to_string()));
        }
        if lazy {
            self.unsynced.extend(records.iter().map(|r| (r.key.clone(), r.bytes.clone())));
        } else {
            self.unsynced.clear();
        }
        Ok(())
    }
}
