//! The engines that were compared, each with the same commits: objects of 4 KB by revision, a history of 10,000.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::Arc,
};

use fjall::{KeyspaceCreateOptions, PersistMode};
use redb::TableDefinition;
use windlass_store::{Counters, Engine as _, Log, Record};

const BY_KEY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("by-key");
const BY_REVISION: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("by-revision");
/// Older revisions than this are removed by engines that have a history.
const HISTORY: u64 = 10_000;
const SMALL_CACHE: u64 = 1 << 20;

pub trait Candidate {
    fn commit(&mut self, records: &[Record]);
}

/// What the disk gives: the bytes of a batch at the end of a file, and `fdatasync`.
struct Bare(File);

impl Candidate for Bare {
    fn commit(&mut self, records: &[Record]) {
        let mut batch = Vec::new();
        records.iter().for_each(|record| batch.extend_from_slice(&record.object.bytes));
        self.0.write_all(&batch).expect("a disk");
        self.0.sync_data().expect("a disk");
    }
}

/// What Windlass had: objects by their keys, no history.
struct RedbByKey(redb::Database);

impl Candidate for RedbByKey {
    fn commit(&mut self, records: &[Record]) {
        let transaction = self.0.begin_write().expect("redb");
        {
            let mut table = transaction.open_table(BY_KEY).expect("redb");
            for record in records {
                let key = format!("{}/{}/{}", record.resource, record.object.key.namespace, record.object.key.name);
                table.insert(key.as_str(), record.object.bytes.as_ref()).expect("redb");
            }
        }
        transaction.commit().expect("redb");
    }
}

struct RedbByRevision(redb::Database);

impl Candidate for RedbByRevision {
    fn commit(&mut self, records: &[Record]) {
        let transaction = self.0.begin_write().expect("redb");
        {
            let mut table = transaction.open_table(BY_REVISION).expect("redb");
            for record in records {
                let revision = record.object.revision;
                table.insert(revision, record.object.bytes.as_ref()).expect("redb");
                if revision > HISTORY {
                    table.remove(revision - HISTORY).expect("redb");
                }
            }
        }
        transaction.commit().expect("redb");
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Candidate for Fjall {
    fn commit(&mut self, records: &[Record]) {
        let mut batch = self.0.batch().durability(Some(PersistMode::SyncData));
        for record in records {
            let revision = record.object.revision;
            batch.insert(&self.1, revision.to_be_bytes(), record.object.bytes.as_ref());
            if revision > HISTORY {
                batch.remove(&self.1, (revision - HISTORY).to_be_bytes());
            }
        }
        batch.commit().expect("fjall");
    }
}

struct OwnLog(Log);

impl Candidate for OwnLog {
    fn commit(&mut self, records: &[Record]) {
        let revision = records.last().map_or(0, |record| record.object.revision);
        self.0.commit(records, &Counters { revision, ceiling: revision + 1, ..Counters::default() }).expect("a disk");
    }
}

pub const NAMES: [&str; 5] = ["bare", "redb by key", "redb by revision", "fjall by revision", "log"];

pub fn open(name: &str, dir: &Path) -> Box<dyn Candidate> {
    fs::create_dir_all(dir).expect("a directory");
    let redb =
        || redb::Database::builder().set_cache_size(SMALL_CACHE as usize).create(dir.join("redb")).expect("redb");
    match name {
        "bare" => Box::new(Bare(OpenOptions::new().create(true).append(true).open(dir.join("bare")).expect("a file"))),
        "redb by key" => Box::new(RedbByKey(redb())),
        "redb by revision" => Box::new(RedbByRevision(redb())),
        "fjall by revision" => {
            let database = fjall::Database::builder(dir).cache_size(SMALL_CACHE).open().expect("fjall");
            let options = || KeyspaceCreateOptions::default().max_memtable_size(8 << 20);
            let keyspace = database.keyspace("objects", options).expect("fjall");
            Box::new(Fjall(database, keyspace))
        }
        _ => Box::new(OwnLog(Log::create(dir, &[], &Counters::default()).expect("a log"))),
    }
}

/// Records over the objects of one resource.
pub fn records(resource: &Arc<str>, objects: impl Iterator<Item = Arc<windlass_store::Object>>) -> Vec<Record> {
    objects.map(|object| Record { resource: Arc::clone(resource), object, deleted: false, unix_seconds: 0 }).collect()
}
