//! One suite for every engine: what ends and disks do to a store.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    super::Fault,
    medium::{Medium, Platter},
    *,
};

/// Runs a test on both engines.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Box<dyn Medium>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(Box::new(Memory::default())));
    runtime.block_on(test(Box::new(Platter::new())));
}

fn text(store: &Store, resource: ResourceId, name: &str) -> Option<String> {
    store.get(resource, &key(name)).map(|o| o.value()["text"].as_str().unwrap().to_owned())
}

#[test]
fn acknowledged_writes_survive_a_kill_and_revisions_are_unique() {
    on_both(|mut medium| async move {
        let store = medium.start();
        let kept = store.write(put("kept", Expected::Absent, "1")).await.unwrap();
        let gone = store.write(put("gone", Expected::Absent, "1")).await.unwrap();
        let last = store.write(delete("gone", gone.revision)).await.unwrap();
        // Shown to everybody and on no disk.
        let mut beats = store.write(beat("b", Expected::Absent, "0")).await.unwrap();
        for i in 1..20 {
            beats = store.write(beat("b", Expected::Revision(beats.revision), &i.to_string())).await.unwrap();
        }
        medium.kill();
        let store = medium.start();
        assert!(store.revision() > beats.revision, "{} after {}", store.revision(), beats.revision);
        assert_eq!(store.get(THINGS, &key("kept")).unwrap().revision, kept.revision);
        assert!(store.get(THINGS, &key("gone")).is_none());
        // Who follows things goes on where he was; who has seen beats that are lost must list.
        let events = store.watch(THINGS, kept.revision).unwrap().next().await.unwrap();
        assert_eq!(
            events.iter().map(|e| (e.object.revision, e.deleted)).collect::<Vec<_>>(),
            [(gone.revision, false), (last.revision, true)]
        );
        assert_eq!(events[1].object.value()["metadata"]["resourceVersion"], last.revision.to_string());
        assert!(matches!(store.watch(BEATS, beats.revision), Err(Error::TooOld { .. })));
        assert!(store.watch(BEATS, store.revision()).is_ok());
        for seen in [last.revision, beats.revision] {
            let mut watch = store.watch(THINGS, seen).unwrap();
            let next = store.write(put(&format!("after-{seen}"), Expected::Absent, "1")).await.unwrap();
            let event = watch.next().await.unwrap();
            assert_eq!(event.last().unwrap().object.revision, next.revision);
            assert!(next.revision > beats.revision + 1);
        }
        // A further life knows of the one before the last, too.
        let seen = store.revision();
        medium.kill();
        let store = medium.start();
        assert!(store.revision() > seen);
        assert!(matches!(store.watch(BEATS, beats.revision), Err(Error::TooOld { .. })));
        assert!(store.watch(THINGS, seen).is_ok());
    });
}

#[test]
fn deferred_writes_are_on_disk_after_a_while() {
    on_both(|mut medium| async move {
        let store = Store::open_within(medium.engine(), &RESOURCES, flushing(Duration::from_millis(20))).unwrap();
        store.write(beat("b", Expected::Absent, "1")).await.unwrap();
        let begun = Instant::now();
        loop {
            medium.kill();
            let mut found = false;
            let mut look =
                |records: Vec<Record>, _: &Counters| found |= records.iter().any(|r| r.object.key == key("b"));
            medium.engine().load(&mut look).unwrap();
            if found {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "nothing was flushed");
            // The copy is another medium: the store goes on with its own.
            let fresh = Store::open_within(medium.engine(), &RESOURCES, flushing(Duration::from_millis(20))).unwrap();
            fresh.write(beat("b", Expected::Absent, "1")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    });
}

#[test]
fn many_deferred_writes_do_not_wait_for_the_clock() {
    on_both(|mut medium| async move {
        let store = Store::open_within(medium.engine(), &RESOURCES, flushing(Duration::from_secs(3600))).unwrap();
        let big = "x".repeat(1 << 19);
        for i in 0..10 {
            store.write(beat(&format!("big-{i}"), Expected::Absent, &big)).await.unwrap();
        }
        medium.kill();
        let found = medium.start().list(BEATS, None).0.len();
        assert!((7..10).contains(&found), "{found}");
    });
}

#[test]
fn an_orderly_end_loses_nothing_and_goes_on_where_it_was() {
    on_both(|medium| async move {
        let store = medium.start();
        store.write(put("a", Expected::Absent, "1")).await.unwrap();
        let last = store.write(beat("b", Expected::Absent, "1")).await.unwrap();
        store.close().await.unwrap();
        assert!(matches!(store.write(put("late", Expected::Absent, "1")).await, Err(Error::Closed)));
        assert_eq!(store.health(), Health::Ended);
        let store = medium.start();
        assert_eq!((store.revision(), text(&store, BEATS, "b").as_deref()), (last.revision, Some("1")));
        assert!(store.watch(BEATS, last.revision).is_ok() && store.watch(THINGS, last.revision - 1).is_ok());
        let next = store.write(beat("c", Expected::Absent, "1")).await.unwrap();
        assert_eq!(next.revision, last.revision + 1);
    });
}

/// The header of the file is written, then the sync fails: the file shows what was refused.
#[test]
fn a_failed_write_is_rolled_back_before_the_next_is_acknowledged() {
    for fault in [Fault::Before, Fault::After] {
        for cut in [false, true] {
            on_both(move |mut medium| async move {
                let store = medium.start();
                let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
                store.write(beat("b", Expected::Absent, "1")).await.unwrap();
                medium.fail(fault, 1);
                let error = store.write(put("a", Expected::Revision(first.revision), "2")).await.unwrap_err();
                assert!(matches!(error, Error::RolledBack(_)), "{error}");
                assert_eq!(store.health(), Health::Serving);
                assert_eq!(text(&store, THINGS, "a").as_deref(), Some("1"));
                if cut {
                    medium.cut_power()
                } else {
                    medium.kill()
                }
                let after = medium.start();
                assert_eq!(text(&after, THINGS, "a").as_deref(), Some("1"), "{fault:?}, power cut: {cut}");
                assert_eq!(text(&after, BEATS, "b").as_deref(), Some("1"), "came along");
                // And the store that saw it goes on, also over a cut of the power.
                let again = store.write(put("a", Expected::Revision(first.revision), "3")).await.unwrap();
                assert!(again.revision > first.revision + 1, "the refused revision is not given again");
            });
        }
    }
}

/// The kernel shows the next process what a failed sync has left on no disk.
#[test]
fn a_start_after_a_failed_sync_trusts_only_the_disk() {
    on_both(|mut medium| async move {
        let store = medium.start();
        for i in 0..20 {
            store.write(put(&format!("a{i}"), Expected::Absent, "1")).await.unwrap();
        }
        store.write(beat("b", Expected::Absent, "1")).await.unwrap();
        medium.fail(Fault::After, usize::MAX);
        let error = store.write(put("x", Expected::Absent, "1")).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
        medium.kill();
        let store = medium.start();
        let lengths = (store.list(THINGS, None).0.len(), store.list(BEATS, None).0.len());
        store.write(put("y", Expected::Absent, "1")).await.unwrap();
        medium.cut_power();
        let store = medium.start();
        assert_eq!((store.list(THINGS, None).0.len() - 1, store.list(BEATS, None).0.len()), lengths);
    });
}

#[test]
fn a_store_goes_on_by_itself_when_its_disk_does() {
    for fault in [Fault::Before, Fault::After] {
        on_both(move |mut medium| async move {
            let store = medium.start();
            store.write(put("a", Expected::Absent, "1")).await.unwrap();
            store.write(beat("b", Expected::Absent, "1")).await.unwrap();
            medium.fail(fault, usize::MAX);
            let error = store.write(put("lost", Expected::Absent, "1")).await.unwrap_err();
            assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
            for write in [put("x", Expected::Absent, "1"), beat("x", Expected::Absent, "1")] {
                let error = store.write(write).await.unwrap_err();
                assert!(matches!(error, Error::RolledBack(_)), "{error}");
            }
            assert!(matches!(store.health(), Health::Failing(_)));
            medium.fail(fault, 0);
            let begun = Instant::now();
            while store.health() != Health::Serving {
                assert!(begun.elapsed() < Duration::from_secs(20), "it does not go on");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let next = store.write(put("x", Expected::Absent, "1")).await.unwrap();
            medium.cut_power();
            let store = medium.start();
            let names: Vec<String> = store.list(THINGS, None).0.into_iter().map(|o| o.key.name.clone()).collect();
            assert_eq!(names, ["a", "x"]);
            assert_eq!(text(&store, BEATS, "b").as_deref(), Some("1"));
            assert!(store.revision() > next.revision);
        });
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8),
    Delete(u8),
    Beat(u8),
    Fail(bool, bool),
    Mend,
    Kill,
    CutPower,
    Close,
    Resume,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4u8).prop_map(Step::Put),
        3 => (0..4u8).prop_map(Step::Delete),
        6 => (0..3u8).prop_map(Step::Beat),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(after, lasting)| Step::Fail(after, lasting)),
        2 => Just(Step::Mend),
        2 => Just(Step::Kill),
        1 => Just(Step::CutPower),
        1 => Just(Step::Close),
        3 => Just(Step::Resume),
    ];
    prop::collection::vec(step, 1..60)
}

/// What somebody who follows a type believes, and up to which revision.
#[derive(Default)]
struct Follower {
    objects: BTreeMap<String, u64>,
    after: u64,
}

impl Follower {
    async fn catch_up(&mut self, store: &Store, resource: ResourceId) {
        let (items, at) = store.list(resource, None);
        let there: BTreeMap<String, u64> = items.into_iter().map(|o| (o.key.name.clone(), o.revision)).collect();
        match store.watch(resource, self.after) {
            Ok(mut watch) => {
                while watch.revision() < at {
                    let Ok(events) = tokio::time::timeout(Duration::from_millis(1), watch.next()).await else { break };
                    for event in events.unwrap() {
                        if event.deleted {
                            self.objects.remove(&event.object.key.name);
                        } else {
                            self.objects.insert(event.object.key.name.clone(), event.object.revision);
                        }
                    }
                }
                assert_eq!(self.objects, there, "{resource:?}: a gap after {}", self.after);
            }
            Err(error) => {
                assert!(matches!(error, Error::TooOld { .. }), "{error}");
                self.objects = there;
            }
        }
        self.after = at;
    }
}

async fn live(mut medium: Box<dyn Medium>, steps: &[Step]) {
    let mut store = medium.start();
    let mut given = BTreeSet::new();
    // What must be there, and what a restart may show in its place.
    let mut sure: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut doubtful: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
    let mut followers = [(THINGS, Follower::default()), (BEATS, Follower::default())];
    for (at, step) in steps.iter().enumerate() {
        let now = at.to_string();
        let write = match step {
            Step::Put(n) | Step::Delete(n) => {
                let name = format!("t{n}");
                let there = store.get(THINGS, &key(&name)).map(|o| o.revision);
                match (step, there) {
                    (Step::Put(_), there) => Some(put(&name, there.map_or(Expected::Absent, Expected::Revision), &now)),
                    (_, Some(revision)) => Some(delete(&name, revision)),
                    (_, None) => None,
                }
            }
            Step::Beat(n) => {
                let name = format!("b{n}");
                let there = store.get(BEATS, &key(&name)).map(|o| o.revision);
                Some(beat(&name, there.map_or(Expected::Absent, Expected::Revision), &now))
            }
            _ => None,
        };
        if let Some(write) = write {
            let (resource, name) = (write.resource, write.key.name.clone());
            let value = write.value.as_ref().map(|_| now);
            match store.write(write).await {
                Ok(object) => {
                    assert!(given.last().is_none_or(|last| *last < object.revision), "{} came again", object.revision);
                    given.insert(object.revision);
                    if resource == THINGS {
                        // The disk holds exactly what was shown: no doubt is left of earlier ones.
                        doubtful.clear();
                        sure.insert(name, value);
                    }
                }
                Err(Error::OutcomeUnknown(_)) if resource == THINGS => {
                    doubtful.entry(name).or_default().insert(value);
                }
                Err(Error::OutcomeUnknown(_) | Error::RolledBack(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        match step {
            Step::Fail(after, lasting) => {
                let fault = if *after { Fault::After } else { Fault::Before };
                medium.fail(fault, if *lasting { usize::MAX } else { 1 });
            }
            Step::Mend => medium.fail(Fault::After, 0),
            Step::Kill | Step::CutPower | Step::Close => {
                if matches!(step, Step::Close) {
                    medium.fail(Fault::After, 0);
                    if store.close().await.is_ok() {
                        doubtful.clear();
                    }
                }
                if matches!(step, Step::CutPower) {
                    medium.cut_power()
                } else {
                    medium.kill()
                }
                store = medium.start();
                assert!(given.last().is_none_or(|last| *last <= store.revision()));
                for (name, wanted) in &mut sure {
                    let is = text(&store, THINGS, name);
                    let may = doubtful.get(name).is_some_and(|d| d.contains(&is));
                    assert!(is == *wanted || may, "{name} is {is:?} and was {wanted:?}");
                    *wanted = is;
                }
                for (name, maybe) in std::mem::take(&mut doubtful) {
                    let is = text(&store, THINGS, &name);
                    assert!(sure.get(&name).map_or(is.is_none(), |s| *s == is) || maybe.contains(&is));
                    sure.insert(name, is);
                }
            }
            Step::Resume => {
                for (resource, follower) in &mut followers {
                    follower.catch_up(&store, *resource).await;
                }
            }
            _ => {}
        }
        for (name, wanted) in &sure {
            assert_eq!(text(&store, THINGS, name), *wanted, "readers never see what was refused");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn no_acknowledged_write_and_no_event_is_lost_under_faults(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(Box::new(Memory::default()), &steps));
        runtime.block_on(live(Box::new(Platter::new()), &steps));
    }
}
