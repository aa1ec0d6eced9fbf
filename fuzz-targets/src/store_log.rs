//! The log of the store, as a crash, a bad disk or an operator's copy leaves it: opening it never panics, and what one start has
//! read another one reads, too. The bytes are payloads of commits, each behind its length, whose checksums are right; what is left
//! over ends the file as it is.

use std::fs;

use windlass_store::{Engine, Log};

/// The file's first bytes, and those of each commit.
const HEADER: &[u8; 16] = b"windlass store\n\x01";
const MAGIC: [u8; 4] = *b"WLc\xf7";

fn file_of(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = HEADER.to_vec();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let Some((payload, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length))) else { break };
        file.extend_from_slice(&MAGIC);
        file.extend_from_slice(&u32::try_from(payload.len()).unwrap_or_default().to_le_bytes());
        file.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        file.extend_from_slice(payload);
        bytes = rest;
    }
    file.extend_from_slice(bytes);
    file
}

/// The log's records (resource, namespace, name, revision and object), or why it cannot be read.
fn records(log: &mut Log) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    log.load(&mut |records, counters| {
        found.extend(records.iter().map(|record| format!("{record:?} {counters:?}")));
    })
    .map_err(|error| error.to_string())?;
    Ok(found)
}

pub(crate) fn run(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("log-00000001"), file_of(bytes)).expect("a file");
    let Ok(mut log) = Log::open(dir.path()) else { return };
    let once = records(&mut log);
    drop(log);
    let mut again = Log::open(dir.path()).expect("what one start has opened another one opens");
    assert_eq!(records(&mut again), once);
}
