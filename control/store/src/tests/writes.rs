//! Guards and allocations, which the writer settles in the order of the writes.

use std::sync::Mutex;

use super::*;

fn guarded(name: &str, condition: Condition) -> Write {
    let guard = Guard { resource: BEATS, key: key("owner"), condition };
    Write { guards: vec![guard], ..put(name, Expected::Absent, "1") }
}

/// A store with an index of the owners' text.
fn indexed() -> Store {
    let mut resources = RESOURCES;
    resources[1].1.indexes = vec![Index::new("text")];
    Store::open(Box::new(Memory::default()), &resources).unwrap()
}

fn is_active() -> Condition {
    Condition::Indexed { field: "text", allows: |text| text == "active" }
}

#[tokio::test]
async fn a_guard_holds_or_the_write_is_refused() {
    let store = indexed();
    let refused = |written: Result<Arc<Object>, Error>| match written {
        Err(Error::Guard { resource, key }) => *resource == *"beats" && key.name == "owner",
        other => panic!("{other:?}"),
    };
    assert!(refused(store.write(guarded("a", Condition::Exists)).await));
    assert!(refused(store.write(guarded("a", is_active())).await));
    store.write(guarded("a", Condition::Absent)).await.unwrap();
    let owner = store.write(beat("owner", Expected::Absent, "active")).await.unwrap();
    assert!(refused(store.write(guarded("b", Condition::Absent)).await));
    assert!(refused(store.write(guarded("b", Condition::Revision(owner.revision + 1))).await));
    for (name, condition) in [("b", Condition::Exists), ("c", Condition::Revision(owner.revision)), ("d", is_active())]
    {
        store.write(guarded(name, condition)).await.unwrap();
    }
    store.write(beat("owner", Expected::Revision(owner.revision), "ending")).await.unwrap();
    assert!(refused(store.write(guarded("e", is_active())).await));
    assert!(store.get(THINGS, &key("e")).is_none());
}

/// However writes come together in a batch: none is after the write that ends its guard.
#[tokio::test]
async fn no_write_comes_between_a_guard_and_its_write() {
    let store = indexed();
    let owner = store.write(beat("owner", Expected::Absent, "active")).await.unwrap();
    let write = |i: usize| {
        let (store, owner) = (store.clone(), owner.revision);
        async move {
            if i == 50 {
                store.write(beat("owner", Expected::Revision(owner), "ending")).await
            } else {
                store.write(guarded(&format!("o{i}"), is_active())).await
            }
        }
    };
    let tasks: Vec<_> = (0..100).map(|i| tokio::spawn(write(i))).collect();
    let (mut accepted, mut refused) = (Vec::new(), 0);
    for (i, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(object) if i != 50 => accepted.push(object.revision),
            Ok(_) => {}
            Err(Error::Guard { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    let ended = store.get(BEATS, &key("owner")).unwrap().revision;
    assert!(accepted.iter().all(|revision| *revision < ended), "{accepted:?} {ended}");
    assert_eq!(accepted.len() + refused, 99);
    assert!(refused > 0 && !accepted.is_empty());
}

/// Gives each object a number of its own.
#[derive(Debug, Default)]
struct Numbers(Arc<Mutex<Vec<u64>>>);

impl Allocator for Numbers {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError> {
        let mut taken = self.0.lock().unwrap();
        match (new, current) {
            (Some(new), None) => {
                let number = (0..3).find(|n| !taken.contains(n));
                let full = || AllocationError { field: "number".to_owned(), detail: "all are taken".to_owned() };
                let number = number.ok_or_else(full)?;
                taken.push(number);
                new["number"] = number.into();
                let shared = Arc::clone(&self.0);
                let rollback: Rollback = Box::new(move || shared.lock().unwrap().retain(|n| *n != number));
                Ok(Allocation { rollback: Some(rollback), companions: Vec::new() })
            }
            (None, Some(deleted)) => {
                taken.retain(|n| deleted.value()["number"] != *n);
                Ok(Allocation::default())
            }
            _ => Ok(Allocation::default()),
        }
    }
}

#[tokio::test]
async fn allocations_follow_the_writes_and_are_taken_back_with_them() {
    let memory = Memory::default();
    let store = open(memory.clone());
    store.set_allocator(THINGS, Arc::new(Numbers::default()));
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    assert_eq!(first.value()["number"], 0);
    memory.fail(Fault::Before, 1);
    assert!(matches!(store.write(put("b", Expected::Absent, "1")).await, Err(Error::RolledBack(_))));
    for (name, number) in [("b", 1), ("c", 2)] {
        assert_eq!(store.write(put(name, Expected::Absent, "1")).await.unwrap().value()["number"], number);
    }
    assert!(matches!(store.write(put("d", Expected::Absent, "1")).await, Err(Error::Allocation(_))));
    store.write(delete("a", first.revision)).await.unwrap();
    assert_eq!(store.write(put("d", Expected::Absent, "1")).await.unwrap().value()["number"], 0);
    // Of other resources it hears nothing.
    assert!(store.write(beat("x", Expected::Absent, "1")).await.unwrap().value()["number"].is_null());
}

/// Writes a heartbeat of the same name with each thing, and deletes it with the thing.
#[derive(Debug)]
struct Pairs;

impl Allocator for Pairs {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError> {
        let is_new = current.is_none();
        let name = new.as_ref().map_or_else(
            || current.unwrap().key.name.clone(),
            |new| new["metadata"]["name"].as_str().unwrap().to_owned(),
        );
        let put = new.is_some().then(|| serde_json::json!({"metadata": {"name": name}}));
        let change = move |found: Option<&Object>| match put {
            Some(_) if !is_new || found.is_some() => Change::Keep,
            Some(value) => Change::Put(value),
            None => Change::Delete,
        };
        let record = Companion { resource: BEATS, key: key(&name), decide: Box::new(change) };
        Ok(Allocation { rollback: None, companions: vec![record] })
    }
}

#[tokio::test]
async fn records_are_written_with_their_object_or_not_at_all() {
    let memory = Memory::default();
    let store = open(memory.clone());
    store.set_allocator(THINGS, Arc::new(Pairs));
    let before = store.revision();
    let mut watch = store.watch(BEATS, before).unwrap();
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let pair = store.get(BEATS, &key("a")).unwrap();
    assert_eq!((pair.revision, store.revision()), (first.revision + 1, first.revision + 1));
    assert_eq!(watch.next().await.unwrap()[0].object.revision, pair.revision);
    let second = store.write(put("a", Expected::Revision(first.revision), "2")).await.unwrap();
    assert_eq!(second.revision, pair.revision + 1, "an unchanged record has no revision of its own");
    memory.fail(Fault::Before, 1);
    assert!(store.write(put("b", Expected::Absent, "1")).await.is_err());
    assert!(store.get(BEATS, &key("b")).is_none());
    // A restart finds both.
    store.close().await.unwrap();
    let store = open(memory);
    assert_eq!(store.get(BEATS, &key("a")).unwrap().revision, pair.revision);
    store.set_allocator(THINGS, Arc::new(Pairs));
    store.write(delete("a", second.revision)).await.unwrap();
    assert!(store.get(BEATS, &key("a")).is_none() && store.get(THINGS, &key("a")).is_none());
}
