//! Files of the log: torn, damaged, of others, copied while they grow.

use std::fs;

use bytes::Bytes;

use super::{medium::*, *};

/// The bytes of a log, and where its last commit begins.
async fn filled() -> (Vec<u8>, usize) {
    let platter = Platter::new();
    let store = platter.start();
    for i in 0..5 {
        store.write(put(&format!("o{i}"), Expected::Absent, "1")).await.unwrap();
    }
    store.close().await.unwrap();
    let mut bytes = platter.bytes();
    let mut frames = bytes.windows(4).enumerate().filter(|(_, w)| **w == *b"WLc\xf7").map(|(at, _)| at).rev();
    // The end has a commit of its own.
    let (end, last) = (frames.next().unwrap(), frames.next().unwrap());
    bytes.truncate(end);
    (bytes, last)
}

/// Wherever the last write was cut, all before it survives; a torn write is distinguished from damage.
#[tokio::test]
async fn a_torn_tail_is_cut_off_and_damage_is_refused() {
    let (bytes, last) = filled().await;
    for end in (last..bytes.len()).step_by(97) {
        let names = Platter::with_bytes(bytes[..end].to_vec()).start().list(THINGS, None).0.len();
        assert_eq!(names, 4, "cut at {end}");
    }
    for at in (16..last).step_by(311) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let platter = Platter::with_bytes(damaged.clone());
        let message = Log::open_in(platter.clone()).unwrap_err().to_string();
        assert!(message.contains("damaged") && message.contains("restore it from a backup"), "{at}: {message}");
        assert_eq!(platter.bytes(), damaged, "it is left as it is");
    }
    // In the last write damage cannot be distinguished from a torn one.
    let mut damaged = bytes.clone();
    damaged[last + 20] ^= 1;
    assert_eq!(Platter::with_bytes(damaged).start().list(THINGS, None).0.len(), 4);
}

/// Behind the last commit is space for the next ones.
#[tokio::test]
async fn zeros_at_the_end_are_no_torn_write_and_hide_none() {
    let mut platter = Platter::new();
    let store = platter.start();
    for i in 0..5 {
        store.write(put(&format!("o{i}"), Expected::Absent, "1")).await.unwrap();
    }
    platter.kill();
    let bytes = platter.bytes();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(bytes.len() > end + 16, "{} bytes of {}", end, bytes.len());
    let names = |bytes: &[u8]| Platter::with_bytes(bytes.to_vec()).start().list(THINGS, None).0.len();
    assert_eq!(names(&bytes), 5);
    let frames: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, w)| **w == *b"WLc\xf7").map(|(at, _)| at).collect();
    let last = *frames.last().unwrap();
    // A write into the zeros of which some pages are on disk: the beginning, the end, or those between.
    for (from, to) in
        [(last, last + 100), (last, last + 1), (last + 500, last + 900), (end - 700, end), (last + 12, end)]
    {
        let mut torn = bytes.clone();
        torn[from..to].fill(0);
        assert_eq!(names(&torn), 4, "{from} to {to} of {last} to {end}");
    }
    // A commit before it is none that was torn.
    let mut damaged = bytes.clone();
    damaged[frames[frames.len() - 2] + 40] ^= 1;
    let message = Log::open_in(Platter::with_bytes(damaged)).unwrap_err().to_string();
    assert!(message.contains("there are commits after it"), "{message}");
    // A plain copy of the file is as good as one that was made with `copy_log`, but for a torn one.
    let (dir, restored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = dir.path().join("copy");
    let mut torn = bytes.clone();
    torn[end - 9] ^= 1;
    fs::write(&copy, &torn).unwrap();
    let message = Log::create_from_copy(restored.path(), &copy).unwrap_err().to_string();
    assert!(message.contains("cut short"), "{message}");
    fs::write(&copy, &bytes).unwrap();
    let store = open(Log::create_from_copy(restored.path(), &copy).unwrap());
    assert_eq!(store.list(THINGS, None).0.len(), 5);
}

/// A clean end leaves no space behind it.
#[tokio::test]
async fn a_clean_end_gives_back_its_zeros() {
    let platter = Platter::new();
    let store = platter.start();
    store.write(put("a", Expected::Absent, "1")).await.unwrap();
    assert_eq!(platter.bytes().last(), Some(&0));
    store.close().await.unwrap();
    let bytes = platter.bytes();
    drop(platter.start());
    assert_eq!(platter.bytes(), bytes);
}

#[test]
fn directories_that_are_none_of_ours_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    assert!(Log::open(path).is_err() && !Log::exists(path), "only what is there is opened");
    let log = path.join("log-00000001");
    for content in [&b""[..], b"short", &[7; 10_000], b"windlass store\n\x02and more"] {
        fs::write(&log, content).unwrap();
        let message = Log::open(path).unwrap_err().to_string();
        assert!(message.contains("left as it is"), "{message}");
        assert_eq!(fs::read(&log).unwrap(), content);
        assert_eq!(message.contains("a newer one"), content.len() == 24, "{message}");
    }
    fs::remove_file(&log).unwrap();
    let open = Log::create(path, &[], &Counters::default()).unwrap();
    let message = Log::open(path).unwrap_err().to_string();
    assert!(message.contains("another process has it open"), "{message}");
    drop(open);
    assert!(Log::create(path, &[], &Counters::default()).is_err(), "what is there is not begun again");
    Log::open(path).unwrap();
}

/// Somebody has copied a part of it only.
#[tokio::test]
async fn a_log_that_is_shorter_than_it_was_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Box::new(Log::create(dir.path(), &[], &Counters::default()).unwrap()), &RESOURCES).unwrap();
    for i in 0..5 {
        store.write(put(&format!("o{i}"), Expected::Absent, "1")).await.unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    let path = dir.path().join("log-00000001");
    let whole = fs::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() / 3] {
        fs::write(&path, &whole[..length]).unwrap();
        let message = Log::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("cut short") && message.contains("left as it is"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), &whole[..length]);
    }
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    assert!(Log::open(dir.path()).is_err());
    fs::write(&path, &whole).unwrap();
    Log::open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_log_of_superseded_states_is_rewritten_beside_its_writers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Box::new(Log::create(dir.path(), &[], &Counters::default()).unwrap()), &RESOURCES).unwrap();
    let kept = store.write(put("kept", Expected::Absent, "1")).await.unwrap();
    let mut last = store.write(put("a", Expected::Absent, "0")).await.unwrap();
    let size = || {
        let files = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len());
        files.sum::<u64>()
    };
    // More than is kept at all.
    let (mut largest, mut smaller) = (0, false);
    for i in 0..160 {
        last = store.write(put("a", Expected::Revision(last.revision), &"x".repeat(1 << 21))).await.unwrap();
        let now = size();
        smaller |= now < largest / 2;
        largest = largest.max(now);
        assert!(now < 700 << 20, "{now} bytes after {i}");
    }
    assert!(smaller, "it has never become smaller than {largest}");
    store.close().await.unwrap();
    drop(store);
    let store = Store::open(Box::new(Log::open(dir.path()).unwrap()), &RESOURCES).unwrap();
    assert_eq!(store.get(THINGS, &key("kept")).unwrap().revision, kept.revision);
    assert_eq!(store.get(THINGS, &key("a")).unwrap().revision, last.revision);
    // What watchers could ask for before, they can after.
    let mut watch = store.watch(THINGS, last.revision - 3).unwrap();
    assert_eq!(watch.next().await.unwrap().len(), 3);
}

/// Writers go on while a copy is made; it is the store at one revision.
#[tokio::test]
async fn a_copy_of_a_store_in_use_is_one_revision_and_restores_to_a_later_one() {
    let (dir, copies, restored) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = Log::create(dir.path(), &[], &Counters::default()).unwrap();
    let store = Store::open(Box::new(log), &RESOURCES).unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for i in 0..300 {
                store.write(put(&format!("o{i:03}"), Expected::Absent, "1")).await.unwrap();
            }
        })
    };
    let mut revisions = Vec::new();
    for i in 0..5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (from, to) = (dir.path().to_owned(), copies.path().join(i.to_string()));
        revisions.push(tokio::task::spawn_blocking(move || copy_log(&from, &to).unwrap()).await.unwrap());
    }
    writer.await.unwrap();
    assert!(revisions.windows(2).all(|w| w[0] <= w[1]), "{revisions:?}");
    assert!(copy_log(dir.path(), &copies.path().join("0")).is_err(), "a copy replaces nothing");
    let copy = copies.path().join("4");
    let message = Log::create_from_copy(dir.path(), &copy).unwrap_err().to_string();
    assert!(message.contains("another process has it open"), "{message}");
    let store_again =
        Store::open(Box::new(Log::create_from_copy(restored.path(), &copy).unwrap()), &RESOURCES).unwrap();
    let (objects, revision) = store_again.list(THINGS, None);
    let wanted = store.list_at(THINGS, None, revisions[4]).unwrap();
    let of = |objects: &[Arc<Object>]| -> Vec<(Key, Bytes)> {
        objects.iter().map(|o| (o.key.clone(), o.bytes.clone())).collect()
    };
    assert_eq!(of(&objects), of(&wanted));
    // A client that has seen more than the copy has must list again.
    assert!(revision > store.revision() + 1_000_000);
    assert!(matches!(store_again.watch(THINGS, store.revision()), Err(Error::TooOld { .. })));
    assert!(store_again.watch(THINGS, revision).is_ok());
    // A copy that was cut short is no copy.
    let bytes = fs::read(&copy).unwrap();
    fs::write(&copy, &bytes[..bytes.len() - 5]).unwrap();
    assert!(Log::create_from_copy(tempfile::tempdir().unwrap().path(), &copy).is_err());
}

const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
const OBJECTS: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("objects");

/// A file as earlier versions wrote it.
fn earlier(path: &std::path::Path, objects: &[(&str, &[u8])], meta: &[(&str, u64)]) {
    let database = redb::Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    for (key, bytes) in objects {
        transaction.open_table(OBJECTS).unwrap().insert(*key, *bytes).unwrap();
    }
    transaction.open_table(OBJECTS).unwrap();
    for (name, value) in meta {
        transaction.open_table(META).unwrap().insert(*name, *value).unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn the_file_of_earlier_versions_is_imported() {
    let (dir, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = old.path().join("store.redb");
    let object = br#"{"kind":"Thing","metadata":{"name":"a","resourceVersion":"90","uid":"u"},"text":"1"}"#;
    let counted = [("schema", 1), ("revision", 100), ("counted", 100), ("ceiling", 100), ("changed/things", 95)];
    earlier(&path, &[("things/n/a", object)], &counted);
    let (records, counters) = import_redb(&path).unwrap();
    let store = Store::open(Box::new(Log::create(dir.path(), &records, &counters).unwrap()), &RESOURCES).unwrap();
    let found = store.get(THINGS, &key("a")).unwrap();
    assert_eq!((&found.bytes[..], found.revision, store.revision()), (&object[..], 90, 100));
    assert!(store.watch(THINGS, 95).is_ok() && matches!(store.watch(THINGS, 94), Err(Error::TooOld { .. })));
    assert!(store.watch(BEATS, 0).is_ok(), "nothing of these has ever changed");
    assert_eq!(store.write(beat("b", Expected::Absent, "1")).await.unwrap().revision, 101);
}

#[test]
fn only_what_is_whole_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let good = br#"{"metadata":{"name":"a","resourceVersion":"9"}}"#;
    let schema = [("schema", 1), ("revision", 150)];
    // A program without a ceiling has written it: nothing is known of what it gave out after its last commit.
    let path = dir.path().join("good");
    earlier(&path, &[("things/n/a", good)], &schema);
    let (records, counters) = import_redb(&path).unwrap();
    assert!(records.len() == 1 && counters.ceiling > 1_000_000 && counters.floor == 150, "{counters:?}");
    let damaged = [&b""[..], b"null", b"{\"metadata\"", b"{\"metadata\":{\"name\":\"a\"}}"];
    for (at, bytes) in damaged.into_iter().enumerate() {
        let path = dir.path().join(at.to_string());
        earlier(&path, &[("things/n/a", good), ("things/n/hurt", bytes)], &schema);
        let message = import_redb(&path).unwrap_err().to_string();
        assert!(message.contains("things/n/hurt in the store is damaged"), "{message}");
    }
    for (name, meta, wanted) in [("newer", &[("schema", 2)][..], "a newer one"), ("other", &[("x", 1)], "not a store")]
    {
        let path = dir.path().join(name);
        earlier(&path, &[], meta);
        let message = import_redb(&path).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::write(dir.path().join("noise"), [7; 10_000]).unwrap();
    for name in ["empty", "noise", "missing"] {
        assert!(import_redb(&dir.path().join(name)).is_err(), "{name}");
    }
}
