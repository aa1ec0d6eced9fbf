//! What bounds the store: the size of an object and of a commit, rewrites of a full disk, and whose files it touches.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::{medium::*, *};

fn large(name: &str, expected: Expected, bytes: usize) -> Write {
    let value = serde_json::json!({"metadata": {"name": name}, "text": "x".repeat(bytes)});
    Write { value: Some(value), ..put(name, expected, "") }
}

/// An object that patches made larger than any client could send stays with all that has it in hand.
#[tokio::test]
async fn an_object_has_a_largest_size() {
    let store = open(Memory::default());
    let refused = store.write(large("a", Expected::Absent, MAX_OBJECT_BYTES)).await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { bytes } if bytes > MAX_OBJECT_BYTES), "{refused}");
    let fits = store.write(large("a", Expected::Absent, MAX_OBJECT_BYTES - 1000)).await.unwrap();
    let grown = store.write(large("a", Expected::Revision(fits.revision), MAX_OBJECT_BYTES)).await;
    assert!(matches!(grown, Err(Error::TooLarge { .. })));
    assert_eq!(store.get(THINGS, &key("a")).unwrap().revision, fits.revision);
    store.write(delete("a", fits.revision)).await.unwrap();
}

/// What an earlier version has let grow can still be made smaller, and deleted.
#[tokio::test]
async fn an_object_that_is_too_large_may_shrink() {
    let value = serde_json::json!({"metadata": {"name": "a"}, "text": "x".repeat(2 * MAX_OBJECT_BYTES)});
    let object = Arc::new(Encoded::new(&value).finish(key("a"), 5));
    let record = Record { resource: "things".into(), object, deleted: false, unix_seconds: 0 };
    let counters = Counters { revision: 5, ceiling: 5, ..Counters::default() };
    let mut engine = Memory::default();
    engine.commit(&[record], &counters).unwrap();
    let store = open(engine);
    assert!(store.write(large("a", Expected::Revision(5), 2 * MAX_OBJECT_BYTES + 1)).await.is_err());
    let shrunk = store.write(large("a", Expected::Revision(5), 2 * MAX_OBJECT_BYTES - 1)).await.unwrap();
    store.write(delete("a", shrunk.revision)).await.unwrap();
}

/// Counts the bytes of the largest transaction.
#[derive(Debug, Clone, Default)]
struct Measured(Arc<std::sync::Mutex<usize>>);

impl Engine for Measured {
    fn load(&mut self, _: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        Ok(())
    }

    fn commit(&mut self, records: &[Record], _: &Counters) -> Result<(), Error> {
        let bytes = records.iter().map(|record| record.object.bytes.len()).sum();
        let mut most = self.0.lock().unwrap();
        *most = most.max(bytes);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_bounded_by_bytes() {
    let engine = Measured::default();
    let store = open(engine.clone());
    let tasks: Vec<_> = (0..60)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.write(large(&format!("o{i}"), Expected::Absent, 2 << 20)).await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let most = *engine.0.lock().unwrap();
    assert!(most <= 33 << 20, "{most}");
}

fn records(count: usize) -> Vec<Record> {
    let of = |i: usize| {
        let value = serde_json::json!({"metadata": {"name": format!("o{i}")}, "text": "x".repeat(5000)});
        let object = Arc::new(Encoded::new(&value).finish(key(&format!("o{i}")), i as u64 + 1));
        Record { resource: "things".into(), object, deleted: false, unix_seconds: 0 }
    };
    (0..count).map(of).collect()
}

/// On a full disk a rewrite that fails would fail again after each commit, and fill the disk each time.
#[test]
fn a_rewrite_that_failed_is_put_off_and_leaves_nothing() {
    let platter = Platter::new();
    let counters = Counters { revision: 9, ceiling: 9, ..Counters::default() };
    let mut log = Log::open_in(platter.clone()).unwrap();
    platter.fail(Fault::Before, 1);
    log.rewrite(records(9), counters.clone());
    assert_eq!(log.size(), 0, "one at a time");
    log.wait_for_rewrite();
    assert_eq!(
        platter.file_names().iter().filter(|name| name.ends_with(".new")).count(),
        0,
        "{:?}",
        platter.file_names()
    );
    log.commit(&records(1), &counters).unwrap();
    assert_eq!(log.size(), 0, "it is put off");
    log.commit(&records(2), &counters).unwrap();
    drop(log);
    assert!(Log::open_in(platter).unwrap().size() > 0);
}

#[test]
fn no_rewrite_begins_without_room_for_it() {
    let platter = Platter::new();
    let counters = Counters { revision: 9, ceiling: 9, ..Counters::default() };
    let mut log = Log::open_in(platter.clone()).unwrap();
    platter.set_free(Some(64 << 20));
    log.rewrite(records(9), counters.clone());
    let names = platter.file_names();
    assert!(log.size() == 0 && !names.iter().any(|name| name.ends_with(".new")), "{names:?}");
    platter.set_free(None);
    let mut log = Log::open_in(platter.clone()).unwrap();
    log.rewrite(records(9), counters.clone());
    log.wait_for_rewrite();
    log.commit(&records(1), &counters).unwrap();
    assert!(log.size() > 0 && platter.names().unwrap().contains(&"log-00000002".to_owned()));
}

/// An operator's copies next to the log are not the store's to remove.
#[test]
fn only_files_of_its_own_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(Log::create(dir.path(), &records(1), &Counters::default()).unwrap());
    let foreign = ["log-00000001.bak", "log-1", "log-+0000009", "log-00000009.new.bak", "log-9.new", "log-", "notes"];
    for name in foreign.iter().chain(&["log-00000009.new"]) {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    drop(Log::open(dir.path()).unwrap());
    for name in foreign {
        assert!(dir.path().join(name).exists(), "{name}");
    }
    assert!(!dir.path().join("log-00000009.new").exists());
}

#[test]
fn no_file_of_the_store_is_for_others() {
    let (dir, restored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(Log::create(dir.path(), &records(3), &Counters::default()).unwrap());
    let copy = restored.path().join("copy");
    copy_log(dir.path(), &copy).unwrap();
    // What an earlier store has noted says nothing about the one that is restored in its place.
    fs::write(restored.path().join("length"), "7 100000000\n").unwrap();
    drop(Log::create_from_copy(restored.path(), &copy).unwrap());
    drop(Log::open(restored.path()).unwrap());
    for entry in fs::read_dir(dir.path()).unwrap().chain(fs::read_dir(restored.path()).unwrap()) {
        let entry = entry.unwrap();
        // The test has made this one.
        if entry.file_name() != "length" || entry.path().starts_with(dir.path()) {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        }
    }
    assert!(copy_log(dir.path(), &copy).is_err(), "it is there already");
}
