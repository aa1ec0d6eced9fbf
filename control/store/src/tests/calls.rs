//! Each system call of the log meets each fault of a disk, with an end of the process or of the power after it. Nothing
//! acknowledged is lost, and the store goes on.

use windlass_model_disk::Fault as DiskFault;

use super::{medium::*, *};

/// Few bytes, so that the writer has the log rewritten while these tests write.
const FEW: Bounds = Bounds { flush: Duration::from_secs(3600), rewrite_bytes: 2 << 10, superseded_bytes: 3 << 10 };

/// What must be there, and what may be: of writes whose outcome is unknown. And how many failed.
#[derive(Default)]
struct Lived {
    sure: BTreeMap<String, Option<String>>,
    maybe: BTreeMap<String, Option<String>>,
    failed: usize,
}

fn open_few(platter: &Platter) -> Option<Store> {
    let log = Log::open_in(platter.clone()).ok()?;
    Store::open_within(Box::new(Rewriting(log)), &RESOURCES, FEW).ok()
}

/// Writes, a rewrite among them.
async fn live(platter: &Platter) -> Lived {
    let mut lived = Lived::default();
    let Some(store) = open_few(platter) else {
        lived.failed += 1;
        return lived;
    };
    for i in 0..12 {
        let name = format!("t{}", i % 3);
        let there = store.get(THINGS, &key(&name)).map(|o| o.revision);
        let text = (i % 4 != 3 || there.is_none()).then(|| i.to_string());
        let write = match (&text, there) {
            (None, Some(revision)) => delete(&name, revision),
            _ => put(&name, there.map_or(Expected::Absent, Expected::Revision), &i.to_string()),
        };
        match store.write(write).await {
            Ok(_) => {
                // The disk holds what was shown before it.
                lived.maybe.clear();
                lived.sure.insert(name, text);
            }
            Err(error) => {
                lived.failed += 1;
                match error {
                    Error::OutcomeUnknown(_) => drop(lived.maybe.insert(name, text)),
                    Error::RolledBack(_) => {}
                    other => panic!("{other}"),
                }
            }
        }
    }
    lived
}

/// The same by writers that write together, so that one transaction is on its way while the next is checked. Texts of one
/// object grow.
async fn live_together(platter: &Platter) -> Lived {
    let mut lived = Lived::default();
    let Some(store) = open_few(platter) else {
        lived.failed += 1;
        return lived;
    };
    let writers = (0..3).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let (name, mut sure, mut maybe, mut failed) = (format!("t{writer}"), None, None, 0);
            for i in 0..8 {
                let there = store.get(THINGS, &key(&name)).map_or(Expected::Absent, |o| Expected::Revision(o.revision));
                match store.write(put(&name, there, &i.to_string())).await {
                    Ok(_) => (sure, maybe) = (Some(i.to_string()), None),
                    Err(error) => {
                        failed += 1;
                        match error {
                            Error::OutcomeUnknown(_) => maybe = Some(i.to_string()),
                            Error::RolledBack(_) => {}
                            other => panic!("{other}"),
                        }
                    }
                }
            }
            (name, sure, maybe, failed)
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        let (name, is, may, failed) = writer.await.unwrap();
        may.into_iter().for_each(|may| drop(lived.maybe.insert(name.clone(), Some(may))));
        lived.sure.insert(name, is);
        lived.failed += failed;
    }
    lived
}

/// Waits for a rewrite that the writer has begun: otherwise the order of calls would be left to chance.
#[derive(Debug)]
struct Rewriting(Log<Platter>);

impl Engine for Rewriting {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        self.0.load(each)
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        self.0.commit(records, counters)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.0.restore()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn rewrite(&mut self, records: Vec<Record>, counters: Counters) {
        self.0.rewrite(records, counters);
        self.0.wait_for_rewrite();
    }
}

fn texts(store: &Store) -> BTreeMap<String, Option<String>> {
    let all = (0..5).map(|i| format!("t{i}"));
    let text = |name: &str| store.get(THINGS, &key(name)).map(|o| o.value()["text"].as_str().unwrap().to_owned());
    all.map(|name| (name.clone(), text(&name))).collect()
}

/// Returns whether the fault has met a call.
async fn check(at: usize, fault: DiskFault, cut: bool, seed: u64, together: bool) -> bool {
    let mut platter = Platter::new();
    let what = format!("call {at}, {fault:?}, power cut: {cut}, seed {seed}, together: {together}");
    platter.set_seed(seed);
    platter.meet(at, fault);
    let Lived { sure, maybe, failed } = if together { live_together(&platter).await } else { live(&platter).await };
    if !platter.has_met() {
        return false;
    }
    assert!(failed == 0 || fault != DiskFault::Interrupted, "{what}: a signal is no failure");
    if cut {
        platter.cut_power()
    } else {
        platter.kill()
    }
    let store = platter.start();
    let found = texts(&store);
    for (name, wanted) in &sure {
        let may = maybe.get(name) == Some(&found[name]);
        assert!(found[name] == *wanted || may, "{what}: {name} is {:?} and was {wanted:?}", found[name]);
    }
    // And what it found stays, over a cut of the power too.
    let written = store.write(put("t9", Expected::Absent, "1")).await.unwrap();
    drop(store);
    platter.cut_power();
    let store = platter.start();
    assert_eq!(texts(&store), found, "{what}");
    assert_eq!(store.get(THINGS, &key("t9")).unwrap().revision, written.revision, "{what}");
    true
}

#[test]
fn each_system_call_may_fail() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let platter = Platter::new();
        let before = platter.calls();
        assert_eq!(live(&platter).await.failed, 0);
        let calls = platter.calls() - before;
        assert!(!platter.file_names().contains(&"log-00000001".to_owned()), "the writer has rewritten nothing");
        assert!(calls > 50, "only {calls} system calls");
        let mut pairs = 0;
        for (at, fault) in (0..calls).flat_map(|at| windlass_model_disk::ALL.map(|fault| (at, fault))) {
            let (mut met, seed) = (false, at as u64);
            for (cut, seed, together) in [
                (false, seed, false),
                (true, seed, false),
                (true, !seed, false),
                (false, seed, true),
                (true, seed, true),
            ] {
                met |= check(at, fault, cut, seed, together).await;
            }
            pairs += usize::from(met);
        }
        println!("store: {pairs} pairs of calls and faults, of {calls} calls");
        assert!(pairs > 4 * calls, "{pairs}");
    });
}

/// The process ends at a call, and the power is cut while the next one starts on what the kernel has shown it.
#[test]
fn a_start_after_a_crash_may_crash() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut pairs, mut at, mut ended) = (0, 0, true);
    while ended {
        let mut platter = Platter::new();
        platter.meet(at, DiskFault::Ends);
        let Lived { sure, maybe, .. } = runtime.block_on(live(&platter));
        ended = platter.has_met();
        platter.kill();
        let mut next = (0, true);
        while next.1 {
            for seed in 0..6 {
                let mut again = platter.clone();
                again.kill();
                again.set_seed((at as u64) << 16 | (next.0 as u64) << 8 | seed);
                again.meet(next.0, DiskFault::Ends);
                let opened = Log::open_in(again.clone());
                next.1 = again.has_met();
                drop(opened);
                again.cut_power();
                let found = texts(&again.start());
                for (name, wanted) in &sure {
                    let may = maybe.get(name) == Some(&found[name]);
                    assert!(found[name] == *wanted || may, "calls {at} and {}, {seed}: {name} is lost", next.0);
                }
            }
            next.0 += 1;
        }
        (pairs, at) = (pairs + next.0, at + 1);
    }
    println!("store: {pairs} pairs of a call and one of the start after it");
    assert!(pairs > 500, "{pairs}");
}

/// Where the disk refuses a rewrite, the writer does not ask for one after each commit: that would fill the disk each time.
#[tokio::test]
async fn a_rewrite_that_the_disk_refuses_is_not_begun_again_and_again() {
    let platter = Platter::new();
    let store = open_few(&platter).unwrap();
    // Room for commits alone.
    platter.set_free(Some(64 << 20));
    let mut last = store.write(put("a", Expected::Absent, "0")).await.unwrap();
    let grow = async |last: &mut Arc<Object>| {
        let before = platter.calls();
        *last = store.write(put("a", Expected::Revision(last.revision), "1")).await.unwrap();
        platter.calls() - before
    };
    for _ in 0..30 {
        let calls = grow(&mut last).await;
        assert!(calls <= 3, "{calls} calls for one commit");
    }
    assert!(platter.file_names().iter().all(|name| !name.starts_with("log-00000002")));
    store.close().await.unwrap();
    platter.set_free(None);
    let store = open_few(&platter).unwrap();
    store.write(put("a", Expected::Revision(last.revision), "2")).await.unwrap();
    store.write(put("b", Expected::Absent, "1")).await.unwrap();
    assert!(platter.file_names().contains(&"log-00000002".to_owned()), "{:?}", platter.file_names());
}

/// A card or a disk of a cloud that takes half a minute for a sync: readers and watchers continue, and writes, also
/// those with relaxed durability, wait and are neither refused nor lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_takes_long_stops_no_reader_and_refuses_no_writer() {
    let mut platter = Platter::new();
    let store = platter.start();
    let first = store.write(put("a", Expected::Absent, "1")).await.unwrap();
    let beats = store.write(beat("b", Expected::Absent, "1")).await.unwrap();
    let mut watch = store.watch(THINGS, first.revision).unwrap();
    platter.hold_syncs(true);
    let send = |write| {
        let store = store.clone();
        tokio::spawn(async move { store.write(write).await })
    };
    let mut waiting = vec![send(put("a", Expected::Revision(first.revision), "2"))];
    while platter.held_syncs() == 0 {
        tokio::task::yield_now().await;
    }
    waiting.push(send(beat("b", Expected::Revision(beats.revision), "2")));
    waiting.push(send(put("c", Expected::Absent, "1")));
    // What is not on disk is not visible.
    let early = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(store.get(THINGS, &key("a")).unwrap().revision, first.revision);
    assert_eq!(store.list(BEATS, None).0.len(), 1);
    assert!(store.watch(BEATS, beats.revision).is_ok());
    assert_eq!(store.health(), Health::Serving);
    assert!(waiting.iter().all(|write| !write.is_finished()));
    platter.hold_syncs(false);
    for write in waiting {
        write.await.unwrap().unwrap();
    }
    assert!(!watch.next().await.unwrap().is_empty());
    platter.cut_power();
    let store = platter.start();
    assert_eq!(store.list(THINGS, None).0.len(), 2);
    assert_eq!(store.get(THINGS, &key("a")).unwrap().value()["text"], "2");
}

/// Zeros behind the last commit are no part of it: a disk that is full takes commits one by one.
#[tokio::test]
async fn without_space_for_zeros_the_log_grows_with_each_commit() {
    let mut platter = Platter::new();
    let store = Store::open_within(platter.engine(), &RESOURCES, flushing(Duration::from_secs(3600))).unwrap();
    // The commit itself, the zeros, the sync.
    platter.fail_calls(1..2);
    let mut calls = platter.calls();
    for (name, wanted) in [("a", 3), ("b", 2), ("c", 2), ("d", 2), ("e", 2)] {
        store.write(put(name, Expected::Absent, "1")).await.unwrap();
        assert_eq!(platter.calls() - calls, wanted, "{name}");
        calls = platter.calls();
    }
    platter.cut_power();
    assert_eq!(platter.start().list(THINGS, None).0.len(), 5);
}
