//! A watch from any revision, replayed on the list at that revision, gives the list at every later one.

use proptest::prelude::*;

use super::*;

type Listed = BTreeMap<Key, u64>;

fn listed(store: &Store, resource: ResourceId) -> (Listed, u64) {
    let (items, at) = store.list(resource, None);
    (items.into_iter().map(|object| (object.key.clone(), object.revision)).collect(), at)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_watch_replayed_on_a_list_is_the_list_at_every_revision(
        steps in prop::collection::vec((any::<bool>(), 0..5u8, 0..4u8), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = open(Memory::default());
            // By resource: the list at each revision at which one was taken.
            let mut lists: BTreeMap<ResourceId, BTreeMap<u64, Listed>> = BTreeMap::new();
            let mut note = |store: &Store| {
                for resource in [THINGS, BEATS] {
                    let (list, at) = listed(store, resource);
                    lists.entry(resource).or_default().insert(at, list);
                }
            };
            note(&store);
            for (of_things, name, kind) in steps {
                let (resource, name) = (if of_things { THINGS } else { BEATS }, name.to_string());
                let there = store.get(resource, &key(&name)).map(|o| o.revision);
                let expected = there.map_or(Expected::Absent, Expected::Revision);
                let write = match there {
                    Some(revision) if kind == 0 => delete(&name, revision),
                    _ => put(&name, expected, "x"),
                };
                store.write(Write { resource, ..write }).await.unwrap();
                note(&store);
            }
            let last = store.revision();
            for (resource, lists) in &lists {
                for (at, list) in lists {
                    let then = store.list_at(*resource, None, *at).unwrap();
                    let then: Listed = then.iter().map(|o| (o.key.clone(), o.revision)).collect();
                    assert_eq!(&then, list, "{resource:?} at {at}");
                }
            }
            for (resource, lists) in &lists {
                for (from, list) in lists {
                    let (mut replayed, mut watch) = (list.clone(), store.watch(*resource, *from).unwrap());
                    watch.batch = 3;
                    let mut events = Vec::new();
                    while watch.revision() < last {
                        match tokio::time::timeout(Duration::from_millis(1), watch.next()).await {
                            Ok(found) => events.extend(found.unwrap()),
                            Err(_) => break,
                        }
                    }
                    let mut events = events.into_iter().peekable();
                    for (at, wanted) in lists.range(from + 1..) {
                        while let Some(event) = events.next_if(|e| e.object.revision <= *at) {
                            let before = replayed.get(&event.object.key).copied();
                            assert_eq!(before, event.previous.as_ref().map(|p| p.revision), "the state before");
                            if event.deleted {
                                replayed.remove(&event.object.key);
                            } else {
                                replayed.insert(event.object.key.clone(), event.object.revision);
                            }
                        }
                        assert_eq!(&replayed, wanted, "{resource:?} from {from} at {at}");
                    }
                    assert!(events.next().is_none());
                }
            }
        });
    }
}
