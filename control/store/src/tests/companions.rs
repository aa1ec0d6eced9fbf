//! Companions, which change with a write or refuse it.

use super::*;

/// A write that counts in `counter`, which ends at 40.
fn counted(name: &str) -> Write {
    let decide: Decide = Box::new(|counter| {
        // A missing one refuses nothing.
        let Some(counter) = counter else { return Change::Keep };
        let mut value = counter.value();
        let count = value["text"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap();
        value["text"] = (count + 1).to_string().into();
        if count == 40 { Change::Refuse } else { Change::Put(value) }
    });
    let companion = Companion { resource: BEATS, key: key("counter"), decide };
    Write { companions: vec![companion], ..put(name, Expected::Absent, "1") }
}

/// A companion is an object like others: the write that would make it too large is refused.
#[tokio::test]
async fn a_companion_has_a_largest_size() {
    let store = open(Memory::default());
    let made = store.write(beat("counter", Expected::Absent, "0")).await.unwrap();
    let grow = |name: &str, bytes: usize| {
        let decide: Decide = Box::new(move |counter| {
            let mut value = counter.unwrap().value();
            value["text"] = "x".repeat(bytes).into();
            Change::Put(value)
        });
        let companion = Companion { resource: BEATS, key: key("counter"), decide };
        Write { companions: vec![companion], ..put(name, Expected::Absent, "1") }
    };
    let refused = store.write(grow("a", MAX_OBJECT_BYTES)).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert!(store.get(THINGS, &key("a")).is_none());
    assert_eq!(store.get(BEATS, &key("counter")).unwrap().revision, made.revision);
    store.write(grow("a", 10)).await.unwrap();
}

fn count(store: &Store) -> u64 {
    let counter = store.get(BEATS, &key("counter")).unwrap().value();
    counter["text"].as_str().unwrap().parse().unwrap()
}

fn written(store: &Store) -> u64 {
    store.list(THINGS, None).0.len() as u64
}

#[tokio::test]
async fn no_write_is_missed_and_none_is_too_many() {
    let store = open(Memory::default());
    store.write(counted("before")).await.unwrap();
    let first = store.write(beat("counter", Expected::Absent, "0")).await.unwrap();
    let mut watch = store.watch(BEATS, first.revision).unwrap();
    let tasks: Vec<_> = (0..100)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.write(counted(&format!("o{i}"))).await })
        })
        .collect();
    let mut accepted = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => accepted += 1,
            Err(Error::Guard { resource, key }) => assert_eq!((&*resource, key.name.as_str()), ("beats", "counter")),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((accepted, count(&store), written(&store)), (40, 40, 41));
    // Watchers see each of its states, which have revisions of their own.
    let mut seen = Vec::new();
    while seen.len() < 40 {
        for event in watch.next().await.unwrap() {
            let value = event.object.value();
            assert_eq!(value["metadata"]["resourceVersion"], event.object.revision.to_string());
            seen.push(value["text"].as_str().unwrap().parse::<u64>().unwrap());
        }
    }
    assert_eq!(seen, (1..=40).collect::<Vec<u64>>());
    // What is refused by itself counts nothing.
    assert!(matches!(store.write(counted("before")).await, Err(Error::Conflict)));
    assert_eq!(count(&store), 40);
}

#[tokio::test]
async fn a_companion_is_on_disk_with_its_write_or_not_at_all() {
    let memory = Memory::default();
    let store = open(memory.clone());
    store.write(beat("counter", Expected::Absent, "0")).await.unwrap();
    store.write(counted("a")).await.unwrap();
    memory.fail(Fault::Before, 1);
    assert!(matches!(store.write(counted("b")).await, Err(Error::RolledBack(_))));
    assert_eq!((count(&store), written(&store)), (1, 1));
    store.write(counted("b")).await.unwrap();
    // The counter's own writes may be lost, these are not.
    let store = open(memory.copy());
    assert_eq!((count(&store), written(&store)), (2, 2));
}
