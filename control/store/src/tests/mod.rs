mod calls;
mod companions;
mod faults;
mod history;
mod limits;
mod log;
mod medium;
mod pipeline;
mod replay;
mod writes;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::*;

const THINGS: ResourceId = ResourceId(0);
/// A resource whose writes are on disk later.
const BEATS: ResourceId = ResourceId(1);
const RESOURCES: [(&str, ResourceOptions); 2] = [
    ("things", ResourceOptions { relaxed_durability: RelaxedDurability::Never, indexes: Vec::new() }),
    ("beats", ResourceOptions { relaxed_durability: RelaxedDurability::Always, indexes: Vec::new() }),
];

fn key(name: &str) -> Key {
    Key { namespace: "n".to_owned(), name: name.to_owned() }
}

fn put(name: &str, expected: Expected, text: &str) -> Write {
    // Large enough that each object has pages of its own in the engine's file.
    let value = serde_json::json!({"metadata": {"name": name}, "text": text, "padding": "x".repeat(3000)});
    Write { resource: THINGS, key: key(name), expected, value: Some(value), guards: Vec::new(), companions: Vec::new() }
}

fn beat(name: &str, expected: Expected, text: &str) -> Write {
    Write { resource: BEATS, ..put(name, expected, text) }
}

fn delete(name: &str, revision: u64) -> Write {
    Write {
        resource: THINGS,
        key: key(name),
        expected: Expected::Revision(revision),
        value: None,
        guards: Vec::new(),
        companions: Vec::new(),
    }
}

fn flushing(flush: Duration) -> Bounds {
    Bounds { flush, ..Bounds::default() }
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

#[derive(Debug)]
struct Panics;

impl Engine for Panics {
    fn load(&mut self, _: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        Ok(())
    }

    fn commit(&mut self, _: &[Record], _: &Counters) -> Result<(), Error> {
        panic!("as a bug would")
    }

    fn restore(&mut self) -> Result<(), Error> {
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
