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

async fn check(mut platter: Platter, failing: std::ops::Range<usize>, cut: bool, seed: u64) {
    let what = format!("calls {failing:?}, power cut: {cut}, seed {seed}");
    platter.set_seed(seed);
    platter.fail_calls(failing);
    let (sure, maybe) = live(&platter).await;
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
                check(Platter::new(), at..at + length, cut, at as u64).await;
            }
        }
    });
}
