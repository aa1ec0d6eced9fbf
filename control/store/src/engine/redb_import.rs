//! Reads the file of earlier versions, a redb database, to take its objects over.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::{
    super::{Error, Key, object::Encoded},
    Counters, Record,
};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Prefix of a resource's name: the revision of its latest change.
const CHANGED: &str = "changed/";
const SCHEMA_VERSION: u64 = 1;
/// Upper bound of the revisions that a program without a ceiling assigned between two durable writes.
const MAX_UNCOUNTED_REVISIONS: u64 = 1_000_000;
const CACHE_BYTES: usize = 1 << 20;

/// All objects and counters of such a file, for [`Log::create`](super::Log::create). The file may be repaired by redb if
/// its program was killed; its content stays.
///
/// # Errors
/// When it is no such file, or damaged.
pub fn import_redb(path: &Path) -> Result<(Vec<Record>, Counters), Error> {
    let failed = |reason: String| Error::Disk { path: path.to_owned(), attempt: "imported", reason };
    let (stored, objects) = read(path).map_err(|e| failed(format!("{e}; it is left as it is")))?;
    match stored.get("schema") {
        Some(&SCHEMA_VERSION) => {}
        Some(other) => {
            return Err(failed(format!(
                "it has layout {other} and this program knows {SCHEMA_VERSION}; use the program that wrote it, or a newer one"
            )));
        }
        None => return Err(failed("it is not a store of windlass".to_owned())),
    }
    let records = objects.into_iter().map(|(key, bytes)| record(&key, &bytes)).collect::<Result<_, _>>()?;
    Ok((records, counters(&stored)))
}

type Tables = (BTreeMap<String, u64>, Vec<(String, Vec<u8>)>);

fn read(path: &Path) -> Result<Tables, redb::Error> {
    // Not `create`, which would begin an empty file again.
    let database = Database::builder().set_cache_size(CACHE_BYTES).open(path)?;
    let transaction = database.begin_read()?;
    let (mut stored, mut objects) = (BTreeMap::new(), Vec::new());
    for entry in transaction.open_table(META)?.iter()? {
        let (name, value) = entry?;
        stored.insert(name.value().to_owned(), value.value());
    }
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (key, bytes) = entry?;
        objects.push((key.value().to_owned(), bytes.value().to_owned()));
    }
    Ok((stored, objects))
}

fn counters(stored: &BTreeMap<String, u64>) -> Counters {
    let counter = |name: &str| stored.get(name).copied().unwrap_or(0);
    let (revision, ceiling) = (counter("revision").max(1), counter("ceiling"));
    if counter("counted") == revision {
        let changed = stored.iter().filter_map(|(k, v)| Some((k.strip_prefix(CHANGED)?.to_owned(), *v)));
        Counters { revision, ceiling, floor: counter("floor"), compacted: changed.collect() }
    } else {
        // Written by a program that knew no other counter.
        let ceiling = ceiling.max(revision + MAX_UNCOUNTED_REVISIONS);
        Counters { revision, ceiling, floor: revision, compacted: BTreeMap::new() }
    }
}

fn record(key: &str, bytes: &[u8]) -> Result<Record, Error> {
    let damaged = |reason: String| Error::Damaged { key: key.to_owned(), reason };
    let mut parts = key.splitn(3, '/');
    let (Some(resource), Some(namespace), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(damaged("its key is not resource/namespace/name".to_owned()));
    };
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let revision = value["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
    let revision = revision.ok_or_else(|| damaged("it has no resourceVersion".to_owned()))?;
    let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
    let object = Arc::new(Encoded::new(&value).finish(key, revision));
    Ok(Record { resource: resource.into(), object, deleted: false, unix_seconds: 0 })
}
