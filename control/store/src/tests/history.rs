//! What watchers and lists can still ask for.

use super::{
    super::{
        history::{AGED_BYTES, MAX_AGE, MAX_SUPERSEDED_BYTES, MIN_AGE},
        state::State,
    },
    *,
};

fn state() -> State {
    State::load(&RESOURCES, &mut Memory::default(), MAX_SUPERSEDED_BYTES).unwrap()
}

/// Publishes a write of `size` bytes over the previous one.
fn publish(state: &mut State, resource: ResourceId, name: &str, size: usize, at: Instant) {
    state.revision += 1;
    let value = serde_json::json!({"metadata": {}, "text": "x".repeat(size)});
    let object = Arc::new(Encoded::new(&value).finish(key(name), state.revision));
    let previous = state.get(resource, &key(name)).cloned();
    state.publish(&Arc::new(Event::new(resource, object, previous, false, at, 0)), at);
}

fn kept(state: &State, resource: ResourceId) -> Vec<u64> {
    state.resource(resource).unwrap().history.iter().map(|event| event.object.revision).collect()
}

#[test]
fn events_are_kept_for_five_minutes() {
    let (mut state, begun) = (state(), Instant::now());
    for second in [0, 10, 299, 305, 311] {
        publish(&mut state, THINGS, "a", 10, begun + Duration::from_secs(second));
    }
    assert!(MAX_AGE == Duration::from_secs(300));
    assert_eq!((kept(&state, THINGS), state.resource(THINGS).unwrap().compacted_revision), (vec![3, 4, 5], 2));
    assert!(state.get(THINGS, &key("a")).is_some(), "what is there stays however old");
}

#[test]
fn a_list_at_a_revision_ends_with_its_age_whatever_is_written() {
    let (mut state, begun) = (state(), Instant::now());
    let after = |seconds| begun + Duration::from_secs(seconds);
    publish(&mut state, THINGS, "a", 10, begun);
    for second in [1, 100, 200, 300, 400, 500] {
        publish(&mut state, BEATS, "b", 10, after(second));
    }
    let listable = |at: u64, seconds: u64| state.check_listable(THINGS, at, after(seconds)).is_ok();
    for (at, seconds, wanted) in [
        (1, 0, true),
        (1, 299, true),
        (2, 400, true),
        (2, 401, false),
        (3, 401, true),
        (3, 501, false),
        (7, 9000, true),
    ] {
        assert_eq!(listable(at, seconds), wanted, "revision {at} after {seconds} s");
    }
    assert!(state.check_compacted(THINGS, 1).is_ok(), "a watch misses nothing");
}

#[test]
fn many_events_are_kept_for_as_long_as_upstream_keeps_them() {
    let (mut state, begun) = (state(), Instant::now());
    for second in 0..200 {
        publish(&mut state, THINGS, "a", AGED_BYTES / 50, begun + Duration::from_secs(second));
    }
    let all = kept(&state, THINGS);
    let age = 200 - all[0];
    assert!((MIN_AGE.as_secs()..MIN_AGE.as_secs() + 3).contains(&age), "{age}");
    assert_eq!(state.resource(THINGS).unwrap().compacted_revision, all[0] - 1);
}

#[test]
fn the_largest_history_gives_way_when_all_are_too_large() {
    let (mut state, begun) = (state(), Instant::now());
    publish(&mut state, BEATS, "b", 10, begun);
    publish(&mut state, BEATS, "b", 10, begun);
    for _ in 0..40 {
        publish(&mut state, THINGS, "a", 1 << 20, begun);
    }
    assert_eq!(kept(&state, BEATS).len(), 2);
    let things = kept(&state, THINGS).len();
    assert!(((MAX_SUPERSEDED_BYTES >> 20) - 3..=MAX_SUPERSEDED_BYTES >> 20).contains(&things), "{things}");
    assert!(matches!(state.check_compacted(THINGS, 3), Err(Error::TooOld { asked: 3, .. })));
    assert!(state.check_compacted(BEATS, 1).is_ok());
}

/// New objects are in memory anyway.
#[tokio::test]
async fn creations_cost_the_history_nothing() {
    let store = open(Memory::default());
    let start = store.revision();
    for i in 0..20 {
        store.write(put(&format!("o{i}"), Expected::Absent, &"x".repeat(2 << 20))).await.unwrap();
    }
    assert_eq!(store.watch(THINGS, start).unwrap().next().await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_slow_watcher_gets_too_old_unless_it_missed_nothing() {
    let store = open(Memory::default());
    let mut slow = store.watch(THINGS, store.revision()).unwrap();
    let mut other = store.watch_scope(THINGS, Scope::Namespace("other".to_owned()), store.revision()).unwrap();
    let mut one = store.watch_scope(THINGS, Scope::Object(key("quiet")), store.revision()).unwrap();
    let mut last = store.write(put("a", Expected::Absent, "1")).await.unwrap().revision;
    for _ in 0..40 {
        last = store.write(put("a", Expected::Revision(last), &"x".repeat(1 << 20))).await.unwrap().revision;
    }
    assert!(matches!(slow.next().await, Err(Error::TooOld { .. })));
    assert_eq!((other.revision(), one.revision()), (store.revision(), store.revision()));
    let quiet = store.write(put("quiet", Expected::Absent, "1")).await.unwrap();
    assert_eq!(one.next().await.unwrap()[0].object.revision, quiet.revision);
    let waiting = tokio::time::timeout(Duration::from_millis(10), other.next()).await;
    assert!(waiting.is_err(), "nothing of this namespace: {waiting:?}");
}

/// A resource that others overtake loses nothing.
#[tokio::test]
async fn a_resource_that_did_not_change_is_watched_from_any_revision() {
    let store = open(Memory::default());
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let mut last = store.write(beat("b", Expected::Absent, "1")).await.unwrap().revision;
    for _ in 0..40 {
        last = store.write(beat("b", Expected::Revision(last), &"x".repeat(1 << 20))).await.unwrap().revision;
    }
    assert!(matches!(store.watch(BEATS, first.revision), Err(Error::TooOld { .. })));
    let mut watch = store.watch(THINGS, 0).unwrap();
    assert_eq!(watch.next().await.unwrap()[0].object.revision, first.revision);
    assert_eq!(watch.revision(), last, "a bookmark goes on with the writes of others");
}

#[tokio::test(start_paused = true)]
async fn writes_wake_only_whom_they_concern() {
    let store = open(Memory::default());
    let now = store.revision();
    let of = |namespace: &str| Scope::Namespace(namespace.to_owned());
    let watches = [
        store.watch(THINGS, now).unwrap(),
        store.watch(BEATS, now).unwrap(),
        store.watch_scope(THINGS, of("n"), now).unwrap(),
        store.watch_scope(THINGS, of("other"), now).unwrap(),
        store.watch_scope(THINGS, Scope::Object(key("a")), now).unwrap(),
        store.watch_scope(THINGS, Scope::Object(key("b")), now).unwrap(),
    ];
    store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let woken: Vec<bool> = watches.iter().map(Watch::is_woken).collect();
    assert_eq!(woken, [true, false, true, false, true, false]);
}

/// A watcher that was there reads the events of its scope alone, one that comes later looks for them in the history.
#[tokio::test]
async fn who_was_there_and_who_comes_later_read_the_same() {
    let store = open(Memory::default());
    let start = store.revision();
    let scopes = [Scope::All, Scope::Namespace("n".to_owned()), Scope::Object(key("o1")), Scope::Object(key("none"))];
    let watch = |scope: &Scope| store.watch_scope(THINGS, scope.clone(), start).unwrap();
    let early: Vec<Watch> = scopes.iter().map(watch).collect();
    let mut revisions = std::collections::HashMap::new();
    for i in 0..30_u32 {
        let name = format!("o{}", i % 4);
        let write = match revisions.remove(&name) {
            Some(revision) if i % 7 == 0 => delete(&name, revision),
            Some(revision) => put(&name, Expected::Revision(revision), "2"),
            None => put(&name, Expected::Absent, "1"),
        };
        let (lives, written) = (write.value.is_some(), store.write(write).await.unwrap());
        lives.then(|| revisions.insert(name, written.revision));
    }
    for (mut early, scope) in early.into_iter().zip(&scopes) {
        let mut late = watch(scope);
        assert_eq!(early.revision(), late.revision(), "{scope:?}");
        if *scope == Scope::Object(key("none")) {
            continue;
        }
        // In pieces, as a slow watcher reads.
        (early.batch, late.batch) = (3, 4);
        let (mut of_early, mut of_late) = (Vec::new(), Vec::new());
        for (watch, seen) in [(&mut early, &mut of_early), (&mut late, &mut of_late)] {
            while watch.revision() < store.revision() {
                seen.extend(watch.next().await.unwrap().iter().map(|event| event.object.revision));
            }
        }
        assert_eq!(of_early, of_late, "{scope:?}");
        assert!(!of_early.is_empty());
    }
}

/// An object enters and leaves what a field selects; its watcher sees both.
#[tokio::test]
async fn watchers_of_an_indexed_field_are_told_of_what_enters_and_leaves_it() {
    let memory = Memory::default();
    let options = || ResourceOptions { indexes: vec![Index::new("text")], ..ResourceOptions::default() };
    let store = Store::open(Box::new(memory.clone()), &[("things", options())]).unwrap();
    let start = store.revision();
    let watch = |store: &Store, value: &str, after: u64| {
        store.watch_scope(THINGS, Scope::Index(0, value.to_owned()), after).unwrap()
    };
    let (mut one, mut two, three) = (watch(&store, "1", start), watch(&store, "2", start), watch(&store, "3", start));
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    assert_eq!([&one, &two, &three].map(Watch::is_woken), [true, false, false]);
    assert_eq!(one.next().await.unwrap().len(), 1);
    let second = store.write(put("a", Expected::Revision(first.revision), "2")).await.unwrap();
    assert_eq!([&one, &two, &three].map(Watch::is_woken), [true, true, false]);
    let last = store.write(delete("a", second.revision)).await.unwrap();
    for state in [&first, &second] {
        assert!(state.index_values.get().is_some(), "the text is not read again");
    }
    let revisions = |events: Vec<Arc<Event>>| events.iter().map(|e| e.object.revision).collect::<Vec<_>>();
    assert_eq!(revisions(one.next().await.unwrap()), [second.revision]);
    assert_eq!(revisions(two.next().await.unwrap()), [second.revision, last.revision]);
    assert_eq!((one.revision(), three.revision()), (store.revision(), store.revision()));
    store.close().await.unwrap();
    // Of events that were loaded, too.
    let store = Store::open(Box::new(memory), &[("things", options())]).unwrap();
    assert_eq!(revisions(watch(&store, "2", start).next().await.unwrap()), [second.revision, last.revision]);
}

#[tokio::test]
async fn a_frame_is_encoded_once_for_all_watchers_of_a_form() {
    let store = open(Memory::default());
    let mut watches: Vec<Watch> = (0..3).map(|_| store.watch(THINGS, store.revision()).unwrap()).collect();
    store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let mut encoded = 0;
    for watch in &mut watches {
        for event in watch.next().await.unwrap() {
            for form in [7, 8] {
                let frame = event.frame(form, || {
                    encoded += 1;
                    format!("{form} {}", event.object.revision).into()
                });
                assert_eq!(frame, format!("{form} {}", event.object.revision));
            }
        }
    }
    assert_eq!(encoded, 2);
    // Old events keep none.
    let events = store.watch(THINGS, 0).unwrap().next().await.unwrap();
    events[0].drop_frames();
    for wanted in ["x", "y"] {
        assert_eq!(events[0].frame(7, || wanted.into()), wanted);
    }
}

#[tokio::test]
async fn pages_are_of_one_revision() {
    let store = open(Memory::default());
    for name in ["a", "b", "c", "d"] {
        store.write(put(name, Expected::Absent, "1")).await.unwrap();
    }
    let first = store.snapshot(THINGS);
    let names = |snapshot: &Snapshot, after: Option<&str>| -> Vec<String> {
        let after = after.map(key);
        snapshot.objects(Some("n"), after.as_ref()).map(|o| o.key.name.clone()).collect()
    };
    let (b, c) = (store.get(THINGS, &key("b")).unwrap(), store.get(THINGS, &key("c")).unwrap());
    store.write(delete("b", b.revision)).await.unwrap();
    store.write(put("bb", Expected::Absent, "1")).await.unwrap();
    store.write(put("c", Expected::Revision(c.revision), "2")).await.unwrap();
    let later = store.snapshot_at(THINGS, first.revision()).unwrap();
    for snapshot in [&first, &later] {
        assert_eq!(names(snapshot, None), ["a", "b", "c", "d"]);
        assert_eq!(names(snapshot, Some("b")), ["c", "d"]);
        assert_eq!(snapshot.objects(None, None).nth(2).unwrap().revision, c.revision);
        assert_eq!(snapshot.objects(Some("m"), None).count() + snapshot.objects(Some("o"), None).count(), 0);
    }
    assert_eq!(names(&store.snapshot(THINGS), Some("a")), ["bb", "c", "d"]);
}
