mod faults;
mod medium;
mod replay;

use std::time::{Duration, Instant};

use super::*;

const THINGS: ResourceId = ResourceId(0);
/// A resource whose writes are on disk later.
const BEATS: ResourceId = ResourceId(1);
const RESOURCES: [(&str, ResourceOptions); 2] = [
    ("things", ResourceOptions { relaxed_durability: RelaxedDurability::Never }),
    ("beats", ResourceOptions { relaxed_durability: RelaxedDurability::Always }),
];

fn key(name: &str) -> Key {
    Key { namespace: "n".to_owned(), name: name.to_owned() }
}

fn put(name: &str, expected: Expected, text: &str) -> Write {
    // Large enough that each object has pages of its own in the engine's file.
    let value = serde_json::json!({"metadata": {"name": name}, "text": text, "padding": "x".repeat(3000)});
    Write { resource: THINGS, key: key(name), expected, value: Some(value) }
}

fn beat(name: &str, expected: Expected, text: &str) -> Write {
    Write { resource: BEATS, ..put(name, expected, text) }
}

fn delete(name: &str, revision: u64) -> Write {
    Write { resource: THINGS, key: key(name), expected: Expected::Revision(revision), value: None }
}

fn open(engine: impl Engine + 'static) -> Store {
    Store::open(Box::new(engine), &RESOURCES).unwrap()
}

#[tokio::test]
async fn a_write_needs_its_precondition() {
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
    assert!(Disk::open(&path).is_err() && !path.exists(), "only what is there is opened");
    drop(Disk::create(&path).unwrap());
    assert!(Disk::create(&path).is_err(), "what is there is not begun anew");
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
    drop(Disk::create(&path).unwrap());
    let set = |schema: u64| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("schema", schema).unwrap();
        transaction.open_table(OBJECTS).unwrap().insert("newer", &b"in words of its own"[..]).unwrap();
        transaction.commit().unwrap();
    };
    set(2);
    let message = Disk::open(&path).unwrap_err().to_string();
    assert!(message.contains("layout 2") && message.contains("a newer one"), "{message}");
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_read().unwrap();
    assert_eq!(transaction.open_table(META).unwrap().get("schema").unwrap().unwrap().value(), 2);
    assert_eq!(transaction.open_table(OBJECTS).unwrap().get("newer").unwrap().unwrap().value(), b"in words of its own");
    drop((transaction, database));
    set(1);
    Disk::open(&path).unwrap();
}

#[tokio::test]
async fn a_watch_returns_every_change_once_and_in_order() {
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
async fn a_slow_watcher_gets_too_old() {
    let store = open(Memory::default());
    let mut watch = store.watch(THINGS, store.revision()).unwrap();
    let big = "x".repeat(1 << 20);
    for i in 0..10 {
        store.write(put(&format!("o{i}"), Expected::Absent, &big)).await.unwrap();
    }
    assert!(matches!(watch.next().await, Err(Error::TooOld { .. })));
}

#[test]
fn the_watch_window_covers_five_minutes() {
    let mut state = State::load(&RESOURCES, Vec::new(), &Counters::default()).unwrap();
    let begun = Instant::now();
    for (revision, second) in [(1, 0), (2, 10), (3, 299), (4, 305), (5, 311)] {
        let object = Arc::new(Object { key: key("a"), revision, bytes: bytes::Bytes::from_static(b"{}") });
        let event = Event { resource: THINGS, object, previous: None, deleted: false };
        state.publish(event, begun + Duration::from_secs(second));
    }
    let kept: Vec<u64> = state.watch_window.iter().map(|(_, event)| event.object.revision).collect();
    assert_eq!(
        (kept.as_slice(), state.resource(THINGS).unwrap().compacted_revision, state.watch_window_bytes),
        ([3, 4, 5].as_slice(), 2, 6)
    );
    assert_eq!(state.objects(THINGS).unwrap().len(), 1, "what is there stays however old");
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
    assert!(items.windows(2).all(|w| w[0].key < w[1].key));
    assert!(store.list(THINGS, Some("other")).0.is_empty());
}

/// A type that others overtake loses nothing: who has seen its last change may go on however old that is.
#[tokio::test]
async fn a_type_that_did_not_change_is_watched_from_any_revision_after_its_last_change() {
    let store = open(Memory::default());
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let big = "x".repeat(1 << 20);
    for i in 0..10 {
        store.write(beat(&format!("o{i}"), Expected::Absent, &big)).await.unwrap();
    }
    assert!(matches!(store.watch(THINGS, first.revision - 1), Err(Error::TooOld { .. })));
    assert!(matches!(store.watch(BEATS, first.revision), Err(Error::TooOld { .. })));
    let mut watch = store.watch(THINGS, first.revision).unwrap();
    let second = store.write(put("a", Expected::Revision(first.revision), "2")).await.unwrap();
    assert_eq!(watch.next().await.unwrap()[0].object.revision, second.revision);
}

#[test]
fn a_damaged_record_is_reported_by_its_key() {
    for bytes in [
        &b""[..],
        b"null",
        b"{\"metadata\"",
        b"{\"metadata\":{\"name\":\"a\"}}",
        b"{\"metadata\":{\"resourceVersion\":\"1\"},\"x\":1e999}",
    ] {
        let mut engine = Memory::default();
        let record = |key: &str| Record { key: key.to_owned(), bytes: Some(Bytes::copy_from_slice(bytes)) };
        let counters = Counters { revision: 5, ceiling: 5, ..Counters::default() };
        engine.commit(&[record("things/n/hurt")], &counters).unwrap();
        let message = Store::open(Box::new(engine.clone()), &RESOURCES).unwrap_err().to_string();
        assert!(message.contains("things/n/hurt in the store is damaged"), "{message}");
        engine.commit(&[Record { key: "things/n/hurt".to_owned(), bytes: None }], &counters).unwrap();
        Store::open(Box::new(engine), &RESOURCES).unwrap();
    }
}

/// A file that a program without a ceiling has written: nothing is known of what it gave out after its last commit.
#[test]
fn a_file_without_a_ceiling_begins_far_above_its_revision() {
    const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let mut disk = Disk::create(&path).unwrap();
    let changed = [("things".to_owned(), 90)].into();
    disk.commit(&[], &Counters { revision: 100, ceiling: 100, floor: 0, changed }).unwrap();
    assert_eq!(disk.load().unwrap().1.changed["things"], 90);
    drop(disk);
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("revision", 150).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let store = open(Disk::open(&path).unwrap());
    assert!(store.revision() > 1_000_000);
    assert!(store.watch(THINGS, 150).is_ok() && matches!(store.watch(THINGS, 149), Err(Error::TooOld { .. })));
    assert!(matches!(store.watch(BEATS, 150), Err(Error::TooOld { .. })), "later ones may be lost");
}

#[derive(Debug)]
struct Panics;

impl Engine for Panics {
    fn load(&mut self) -> Result<(Vec<Record>, Counters), Error> {
        Ok((Vec::new(), Counters::default()))
    }

    fn commit(&mut self, _: &[Record], _: &Counters) -> Result<(), Error> {
        panic!("as a bug would")
    }

    fn restore(&mut self, _: &BTreeMap<String, Bytes>, _: &Counters) -> Result<(), Error> {
        Ok(())
    }
}

#[tokio::test]
async fn a_writer_that_panics_is_known_to_have_ended() {
    let store = open(Panics);
    assert_eq!(store.health(), Health::Serving);
    assert!(matches!(store.write(put("a", Expected::Absent, "1")).await, Err(Error::Closed)));
    store.ended().await;
    assert_eq!(store.health(), Health::Ended);
    assert!(matches!(store.write(put("b", Expected::Absent, "1")).await, Err(Error::Closed)));
    assert!(store.get(THINGS, &key("a")).is_none());
}

/// The definition of a custom resource is itself an object: its resource is registered long after its objects are
/// loaded.
#[tokio::test]
async fn objects_of_a_resource_are_loaded_before_it_is_registered() {
    let engine = Memory::default();
    let store = open(engine.clone());
    let widgets = store.register("widgets.example.com", ResourceOptions::default());
    assert_eq!(store.resource("widgets.example.com"), widgets);
    let written = store.write(Write { resource: widgets, ..put("w", Expected::Absent, "1") }).await.unwrap();
    store.close().await.unwrap();
    let store = open(engine);
    let other = store.register("gadgets.example.com", ResourceOptions::default());
    let widgets = store.register("widgets.example.com", ResourceOptions::default());
    assert_eq!(store.get(widgets, &key("w")).unwrap().revision, written.revision);
    assert!(store.get(other, &key("w")).is_none());
    assert!(store.watch(widgets, written.revision).is_ok() && store.watch(other, 0).is_ok());
}
