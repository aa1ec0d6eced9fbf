//! Each system call of the log fails once, or from then on until the disk is mended, with an end of the process or of the
//! power after it. Nothing acknowledged is lost, and the store goes on.

use super::{medium::*, *};

/// Writes, a rewrite among them, and a mended disk in the end. Returns what must be there, and what may be: of writes
/// whose outcome is unknown.
async fn live(platter: &Platter) -> (BTreeMap<String, Option<String>>, BTreeMap<String, Option<String>>) {
    let (mut sure, mut maybe) = (BTreeMap::new(), BTreeMap::new());
    let Ok(log) = Log::open_in(platter.clone()) else { return (sure, maybe) };
    let Ok(store) = Store::open(Box::new(Rewriting { log, commits: 0 }), &RESOURCES) else { return (sure, maybe) };
    for i in 0..12 {
        let name = format!("t{}", i % 5);
        let there = store.get(THINGS, &key(&name)).map(|o| o.revision);
        let text = (i % 4 != 3 || there.is_none()).then(|| i.to_string());
        let write = match (&text, there) {
            (None, Some(revision)) => delete(&name, revision),
            _ => put(&name, there.map_or(Expected::Absent, Expected::Revision), &i.to_string()),
        };
        match store.write(write).await {
            Ok(_) => {
                // The disk holds what was shown before it.
                maybe.clear();
                sure.insert(name, text);
            }
            Err(Error::OutcomeUnknown(_)) => drop(maybe.insert(name, text)),
            Err(Error::RolledBack(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    (sure, maybe)
}

/// The same by writers that write together, so that one transaction is on its way while the next is checked. Texts of one
/// object grow.
async fn live_together(platter: &Platter) -> (BTreeMap<String, Option<String>>, BTreeMap<String, Option<String>>) {
    let (mut sure, mut maybe) = (BTreeMap::new(), BTreeMap::new());
    let Ok(log) = Log::open_in(platter.clone()) else { return (sure, maybe) };
    let Ok(store) = Store::open(Box::new(Rewriting { log, commits: 0 }), &RESOURCES) else { return (sure, maybe) };
    let writers = (0..5).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let (name, mut sure, mut maybe) = (format!("t{writer}"), None, None);
            for i in 0..6 {
                let there = store.get(THINGS, &key(&name)).map_or(Expected::Absent, |o| Expected::Revision(o.revision));
                match store.write(put(&name, there, &i.to_string())).await {
                    Ok(_) => (sure, maybe) = (Some(i.to_string()), None),
                    Err(Error::OutcomeUnknown(_)) => maybe = Some(i.to_string()),
                    Err(Error::RolledBack(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            (name, sure, maybe)
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        let (name, is, may) = writer.await.unwrap();
        may.into_iter().for_each(|may| drop(maybe.insert(name.clone(), Some(may))));
        sure.insert(name, is);
    }
    (sure, maybe)
}

/// Rewrites the log after a few commits, and waits for it: otherwise the order of calls would be left to chance.
#[derive(Debug)]
struct Rewriting {
    log: Log<Platter>,
    commits: usize,
}

impl Engine for Rewriting {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        self.log.load(each)
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        self.commits += 1;
        if self.commits.is_multiple_of(4) {
            let (mut all, mut latest) = (Vec::new(), Counters::default());
            let loaded = self.log.load(&mut |records, counters| {
                all.extend(records);
                latest.clone_from(counters);
            });
            if loaded.is_ok() {
                self.log.rewrite(all, latest);
                self.log.wait_for_rewrite();
            }
        }
        self.log.commit(records, counters)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.log.restore()
    }
}

fn texts(store: &Store) -> BTreeMap<String, Option<String>> {
    let all = (0..5).map(|i| format!("t{i}"));
    let text = |name: &str| store.get(THINGS, &key(name)).map(|o| o.value()["text"].as_str().unwrap().to_owned());
    all.map(|name| (name.clone(), text(&name))).collect()
}

async fn check(mut platter: Platter, failing: std::ops::Range<usize>, cut: bool, seed: u64, together: bool) {
    let what = format!("calls {failing:?}, power cut: {cut}, seed {seed}");
    platter.set_seed(seed);
    platter.fail_calls(failing);
    let (sure, maybe) = if together { live_together(&platter).await } else { live(&platter).await };
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
}

#[test]
fn each_system_call_may_fail() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let platter = Platter::new();
        let before = platter.calls();
        live(&platter).await;
        let calls = platter.calls() - before;
        assert!(calls > 40, "only {calls} system calls");
        for at in 0..calls {
            for (length, cut) in [(1, false), (1, true), (100_000, false), (100_000, true)] {
                check(Platter::new(), at..at + length, cut, at as u64, false).await;
                check(Platter::new(), at..at + length, cut, at as u64, true).await;
            }
        }
    });
}

/// Zeros behind the last commit are no part of it: a disk that is full takes commits one by one.
#[tokio::test]
async fn without_space_for_zeros_the_log_grows_with_each_commit() {
    let mut platter = Platter::new();
    let store = Store::open_flushing(platter.engine(), &RESOURCES, Duration::from_secs(3600)).unwrap();
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
