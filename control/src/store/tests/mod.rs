use std::time::Duration;

use super::*;

const THINGS: &str = "things";

fn key(name: &str) -> Key {
    Key { namespace: "n".to_owned(), name: name.to_owned() }
}

fn put(name: &str, expected: Expected, text: &str) -> Write {
    let value = serde_json::json!({"metadata": {"name": name}, "text": text});
    Write { resource: THINGS, key: key(name), expected, value: Some(value), lazy: false }
}

fn delete(name: &str, revision: u64) -> Write {
    Write { resource: THINGS, key: key(name), expected: Expected::Revision(revision), value: None, lazy: false }
}

fn open(engine: impl Engine + 'static) -> Store {
    Store::open(Box::new(engine), &[THINGS]).unwrap()
}

#[tokio::test]
async fn a_write_happens_only_when_what_it_expects_holds() {
    let store = open(Memory::default());
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    assert!(matches!(store.write(put("a", Expected::Absent, "2")).await, Err(Error::Conflict)));
    assert!(matches!(store.write(put("a", Expected::Revision(99), "2")).await, Err(Error::Conflict)));
    let second = store.write(put("a", Expected::Revision(first.revision), "2")).await.unwrap();
    assert!(second.revision > first.revision);
    assert_eq!(store.get(THINGS, &key("a")).unwrap().value()["text"], "2");
    assert_eq!(second.value()["metadata"]["resourceVersion"], second.revision.to_string());
    assert!(matches!(store.write(delete("a", first.revision)).await, Err(Error::Conflict)));
    let last = store.write(delete("a", second.revision)).await.unwrap();
    assert_eq!((last.value()["text"].as_str(), last.revision > second.revision), (Some("2"), true));
    assert!(store.get(THINGS, &key("a")).is_none());
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let store = open(Disk::open(&path).unwrap());
    let kept = store.write(put("kept", Expected::Absent, "1")).await.unwrap();
    let gone = store.write(put("gone", Expected::Absent, "1")).await.unwrap();
    store.write(delete("gone", gone.revision)).await.unwrap();
    let revision = store.revision();
    // A copy of the file as it is now is what a crash would leave.
    let copy = dir.path().join("copy.redb");
    std::fs::copy(&path, &copy).unwrap();
    let again = open(Disk::open(&copy).unwrap());
    assert_eq!(again.revision(), revision);
    assert_eq!(again.get(THINGS, &key("kept")).unwrap().revision, kept.revision);
    assert!(again.get(THINGS, &key("gone")).is_none());
    let next = again.write(put("new", Expected::Absent, "1")).await.unwrap();
    assert!(next.revision > revision, "revisions never go back");
    assert!(matches!(again.watch(THINGS, revision - 1), Err(Error::TooOld { .. })));
    assert!(again.watch(THINGS, revision).is_ok());
}

#[test]
fn files_that_are_none_of_ours_or_cut_short_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    for content in [&b""[..], b"short", &[7; 100_000]] {
        std::fs::write(&path, content).unwrap();
        let error = Disk::open(&path).unwrap_err().to_string();
        assert!(error.contains("store.redb"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    drop(Disk::open(&path).unwrap());
    let whole = std::fs::read(&path).unwrap();
    for length in [whole.len() / 3, whole.len() - 4096, 4096, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(Disk::open(&path).is_err(), "{length} of {} bytes", whole.len());
        assert_eq!(std::fs::read(&path).unwrap(), &whole[..length]);
    }
    std::fs::write(&path, &whole).unwrap();
    assert!(Disk::open(&path).is_ok());
}

/// What the next version may write, an older program must not take apart.
#[test]
fn data_of_a_newer_program_is_refused_and_left_as_it_is() {
    use redb::ReadableDatabase as _;
    const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
    const OBJECTS: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("objects");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(Disk::open(&path).unwrap());
    let set = |schema: u64| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("schema", schema).unwrap();
        transaction.open_table(OBJECTS).unwrap().insert("newer", &b"in words of its own"[..]).unwrap();
        transaction.commit().unwrap();
    };
    set(2);
    let said = Disk::open(&path).unwrap_err().to_string();
    assert!(said.contains("layout 2") && said.contains("a newer one"), "{said}");
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_read().unwrap();
    assert_eq!(transaction.open_table(META).unwrap().get("schema").unwrap().unwrap().value(), 2);
    assert_eq!(transaction.open_table(OBJECTS).unwrap().get("newer").unwrap().unwrap().value(), b"in words of its own");
    drop((transaction, database));
    set(1);
    Disk::open(&path).unwrap();
}

#[tokio::test]
async fn a_watch_tells_every_change_once_and_in_order() {
    let store = open(Memory::default());
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let mut watch = store.watch(THINGS, first.revision).unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut revision = first.revision;
            for i in 0..500 {
                revision = store.write(put("a", Expected::Revision(revision), &i.to_string())).await.unwrap().revision;
            }
            store.write(delete("a", revision)).await.unwrap();
        })
    };
    let mut seen = Vec::new();
    while seen.len() < 501 {
        seen.extend(watch.next().await.unwrap());
    }
    writer.await.unwrap();
    let texts: Vec<String> =
        seen[..500].iter().map(|c| c.object.value()["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, (0..500).map(|i| i.to_string()).collect::<Vec<_>>());
    assert!(seen[500].deleted && seen.windows(2).all(|w| w[0].object.revision < w[1].object.revision));
    assert_eq!(seen[1].previous.as_ref().unwrap().revision, seen[0].object.revision);
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_so() {
    let store = open(Memory::default());
    let mut watch = store.watch(THINGS, store.revision()).unwrap();
    let big = "x".repeat(1 << 20);
    for i in 0..10 {
        store.write(put(&format!("o{i}"), Expected::Absent, &big)).await.unwrap();
    }
    assert!(matches!(watch.next().await, Err(Error::TooOld { .. })));
}

#[test]
fn changes_are_kept_for_five_minutes() {
    let mut state = State::default();
    let begun = Instant::now();
    for (revision, second) in [(1, 0), (2, 10), (3, 299), (4, 305), (5, 311)] {
        let object = Arc::new(Object { revision, bytes: bytes::Bytes::from_static(b"{}") });
        let key = Key { namespace: "n".to_owned(), name: "a".to_owned() };
        let change = Change { resource: THINGS, key, object, previous: None, deleted: false };
        writer::show(&mut state, change, begun + Duration::from_secs(second));
    }
    let kept: Vec<u64> = state.recent.iter().map(|(_, change)| change.object.revision).collect();
    assert_eq!((kept.as_slice(), state.forgotten, state.recent_bytes), ([3, 4, 5].as_slice(), 2, 6));
    assert_eq!(state.resources[THINGS].len(), 1, "what is there stays however old");
}

#[tokio::test]
async fn many_writers_lose_nothing() {
    let store = open(Memory::default());
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(
                async move { store.write(put(&format!("o{i:03}"), Expected::Absent, "1")).await.unwrap().revision },
            )
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.push(task.await.unwrap());
    }
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 200, "every write has a revision of its own");
    let (items, at) = store.list(THINGS, Some("n"));
    assert_eq!((items.len(), at), (200, *revisions.last().unwrap()));
    assert!(items.windows(2).all(|w| w[0].0 < w[1].0));
    assert!(store.list(THINGS, Some("other")).0.is_empty());
}

#[test]
fn what_was_lazy_is_written_again_when_the_file_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let record = |key: &str, text: Option<&'static str>| Record {
        key: key.to_owned(),
        bytes: text.map(|text| bytes::Bytes::from_static(text.as_bytes())),
    };
    let mut disk = Disk::open(&path).unwrap();
    disk.commit(&[record("a", Some("1")), record("b", Some("1"))], 2, false).unwrap();
    disk.commit(&[record("a", Some("2")), record("c", Some("2"))], 3, true).unwrap();
    disk.commit(&[record("b", None)], 4, true).unwrap();
    disk.lose();
    // The first write after it is on disk, however lazy, and brings the others along.
    disk.commit(&[record("d", Some("5"))], 5, true).unwrap();
    disk.lose();
    drop(disk);
    let (records, revision) = Disk::open(&path).unwrap().load().unwrap();
    let shown: Vec<(String, String)> =
        records.into_iter().map(|r| (r.key, String::from_utf8(r.bytes.unwrap().to_vec()).unwrap())).collect();
    let expected = [("a", "2"), ("c", "2"), ("d", "5")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!((shown, revision), (expected.to_vec(), 5));
}
