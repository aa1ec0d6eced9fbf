//! Writes are checked while a transaction is on its way to the disk: they build on it, and fail with it.

use std::sync::{Condvar, Mutex};

use tokio::task::JoinHandle;

use super::{
    super::Fault,
    medium::{Medium, Platter},
    *,
};

/// Lets commits through one by one.
#[derive(Debug, Default)]
struct Gate {
    entered: usize,
    allowed: usize,
}

type Shared = Arc<(Mutex<Gate>, Condvar)>;

#[derive(Debug)]
struct Gated {
    engine: Box<dyn Engine>,
    gate: Shared,
}

impl Engine for Gated {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        self.engine.load(each)
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        let (gate, wake) = &*self.gate;
        let mut open = gate.lock().unwrap();
        open.entered += 1;
        wake.notify_all();
        let number = open.entered;
        drop(wake.wait_while(open, |gate| gate.allowed < number).unwrap());
        self.engine.commit(records, counters)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.engine.restore()
    }
}

struct Waits(Shared);

impl Waits {
    /// Until so many commits have begun.
    fn for_commit(&self, number: usize) {
        let (gate, wake) = &*self.0;
        let entered = gate.lock().unwrap();
        let (entered, waited) =
            wake.wait_timeout_while(entered, Duration::from_secs(20), |gate| gate.entered < number).unwrap();
        assert!(!waited.timed_out(), "{} commits have begun instead of {number}", entered.entered);
    }

    fn allow(&self, number: usize) {
        self.0.0.lock().unwrap().allowed = number;
        self.0.1.notify_all();
    }
}

fn gated(medium: &dyn Medium) -> (Store, Waits) {
    let gate = Shared::default();
    let engine = Gated { engine: medium.engine(), gate: Arc::clone(&gate) };
    (open(engine), Waits(gate))
}

type Outcome = Result<Arc<Object>, Error>;

/// Hands writes over in their order.
async fn send(store: &Store, writes: Vec<Write>) -> Vec<JoinHandle<Outcome>> {
    let mut tasks = Vec::new();
    for write in writes {
        let store = store.clone();
        tasks.push(tokio::spawn(async move { store.write(write).await }));
        tokio::task::yield_now().await;
    }
    tasks
}

async fn outcomes(tasks: Vec<JoinHandle<Outcome>>) -> Vec<Outcome> {
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    all
}

fn names(store: &Store) -> Vec<String> {
    store.list(THINGS, None).0.iter().map(|o| o.key.name.clone()).collect()
}

fn many(prefix: &str, count: usize) -> Vec<Write> {
    (0..count).map(|i| put(&format!("{prefix}{i:02}"), Expected::Absent, "1")).collect()
}

/// Waits until all that was sent before was checked: the writer looks when there are some, of which the first must be
/// refused because of what is on its way, and the others always are.
async fn all_are_checked(store: &Store, first: Write) {
    let filler = || put("first", Expected::Revision(u64::MAX), "1");
    let mut tasks = send(store, [first].into_iter().chain((0..40).map(|_| filler())).collect()).await;
    let refused = tasks.remove(0).await.unwrap();
    assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");
}

/// A store whose second commit, of `a00` to `a19`, is on its way.
async fn with_a_commit_on_its_way(medium: &dyn Medium) -> (Store, Waits, u64, Vec<JoinHandle<Outcome>>) {
    let (store, gate) = gated(medium);
    let first = send(&store, vec![put("first", Expected::Absent, "1")]).await;
    gate.for_commit(1);
    let on_their_way = send(&store, many("a", 20)).await;
    gate.allow(1);
    let revision = outcomes(first).await.remove(0).unwrap().revision;
    gate.for_commit(2);
    (store, gate, revision, on_their_way)
}

fn on_both(test: impl AsyncFn(Box<dyn Medium>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(Box::new(Memory::default())));
    runtime.block_on(test(Box::new(Platter::new())));
}

#[test]
fn what_is_on_its_way_is_seen_by_later_writes_and_by_no_reader() {
    on_both(async |mut medium| {
        let (store, gate, first, on_their_way) = with_a_commit_on_its_way(&*medium).await;
        let mut watch = store.watch(THINGS, first).unwrap();
        // It is deleted and comes again, another changes, both before they are on disk.
        let mut next = vec![
            delete("a00", first + 1),
            put("a00", Expected::Absent, "2"),
            put("a01", Expected::Revision(first + 2), "2"),
            Write {
                guards: vec![Guard { resource: THINGS, key: key("a02"), condition: Condition::Exists }],
                ..put("guarded", Expected::Absent, "1")
            },
        ];
        next.extend(many("b", 20));
        let next = send(&store, next).await;
        all_are_checked(&store, put("a05", Expected::Absent, "1")).await;
        assert_eq!((names(&store), store.revision()), (vec!["first".to_owned()], first));
        assert!(on_their_way.iter().chain(&next).all(|task| !task.is_finished()));
        gate.allow(usize::MAX);
        let all: Vec<Outcome> = [outcomes(on_their_way).await, outcomes(next).await].into_iter().flatten().collect();
        let revisions: Vec<u64> = all.into_iter().map(|outcome| outcome.unwrap().revision).collect();
        assert_eq!(revisions, (first + 1..=first + 44).collect::<Vec<_>>());
        let mut seen = Vec::new();
        while seen.len() < revisions.len() {
            seen.extend(watch.next().await.unwrap().iter().map(|event| event.object.revision));
        }
        assert_eq!(seen, revisions);
        let shown = names(&store);
        medium.kill();
        let store = medium.start();
        assert_eq!((names(&store), shown.len()), (shown, 42));
        for name in ["a00", "a01"] {
            assert_eq!(store.get(THINGS, &key(name)).unwrap().value()["text"], "2");
        }
    });
}

#[test]
fn writes_that_follow_a_failed_commit_fail_with_it() {
    for (fault, times) in
        [(Fault::Before, 1), (Fault::After, 1), (Fault::Before, usize::MAX), (Fault::After, usize::MAX)]
    {
        on_both(async |mut medium| {
            let (store, gate, first, on_their_way) = with_a_commit_on_its_way(&*medium).await;
            let mut next = vec![delete("a00", first + 1), put("a01", Expected::Revision(first + 2), "2")];
            next.extend(many("b", 20));
            let next = send(&store, next).await;
            all_are_checked(&store, put("a05", Expected::Absent, "1")).await;
            medium.fail(fault, times);
            gate.allow(usize::MAX);
            for outcome in outcomes(on_their_way).await {
                match outcome {
                    Err(Error::RolledBack(_)) if times == 1 => {}
                    Err(Error::OutcomeUnknown(_)) if times > 1 => {}
                    other => panic!("{fault:?} {times}: {other:?}"),
                }
            }
            for outcome in outcomes(next).await {
                assert!(matches!(outcome, Err(Error::RolledBack(_))), "{fault:?} {times}: {outcome:?}");
            }
            assert_eq!((names(&store), store.revision()), (vec!["first".to_owned()], first));
            medium.fail(fault, 0);
            let begun = Instant::now();
            // As if they had never been: neither key nor revision is taken.
            let again = loop {
                match store.write(put("a00", Expected::Absent, "3")).await {
                    Ok(again) => break again,
                    Err(error) => assert!(matches!(error, Error::RolledBack(_)), "{error}"),
                }
                assert!(begun.elapsed() < Duration::from_secs(20), "it does not go on");
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!(again.revision > first + 20);
            medium.cut_power();
            let store = medium.start();
            assert_eq!(names(&store), ["a00", "first"]);
            assert_eq!(store.get(THINGS, &key("a00")).unwrap().revision, again.revision);
        });
    }
}

/// Remembers its allocations, and that the latest is taken back first.
#[derive(Debug, Default)]
struct Stack(Arc<Mutex<Vec<u64>>>);

impl Allocator for Stack {
    fn allocate(&self, new: Option<&mut Value>, _: Option<&Object>) -> Result<Allocation, AllocationError> {
        let mut stack = self.0.lock().unwrap();
        let number = stack.len() as u64;
        stack.push(number);
        new.into_iter().for_each(|new| new["number"] = number.into());
        let shared = Arc::clone(&self.0);
        let rollback: Rollback = Box::new(move || assert_eq!(shared.lock().unwrap().pop(), Some(number)));
        Ok(Allocation { rollback: Some(rollback), companions: Vec::new() })
    }
}

#[test]
fn allocations_are_taken_back_in_reverse_order_over_both_transactions() {
    on_both(async |medium| {
        let (store, gate) = gated(&*medium);
        let stack = Stack::default();
        let taken = Arc::clone(&stack.0);
        store.set_allocator(THINGS, Arc::new(stack));
        let first = send(&store, vec![put("first", Expected::Absent, "1")]).await;
        gate.for_commit(1);
        let mut writes = send(&store, many("a", 20)).await;
        gate.allow(1);
        assert!(outcomes(first).await[0].is_ok());
        gate.for_commit(2);
        writes.extend(send(&store, many("b", 20)).await);
        all_are_checked(&store, put("a05", Expected::Absent, "1")).await;
        assert_eq!(taken.lock().unwrap().len(), 41);
        medium.fail(Fault::After, 1);
        gate.allow(usize::MAX);
        assert!(outcomes(writes).await.iter().all(Result::is_err));
        assert_eq!(*taken.lock().unwrap(), [0]);
        assert_eq!(store.write(put("b", Expected::Absent, "1")).await.unwrap().value()["number"], 1);
    });
}

/// Writes with relaxed durability are shown at once, but never before those that came earlier.
#[test]
fn relaxed_writes_wait_for_what_is_on_its_way() {
    on_both(async |medium| {
        let (store, gate, first, on_their_way) = with_a_commit_on_its_way(&*medium).await;
        let beats = (0..20).map(|i| beat(&format!("b{i:02}"), Expected::Absent, "1")).collect();
        let beats = send(&store, beats).await;
        all_are_checked(&store, put("a05", Expected::Absent, "1")).await;
        assert!((store.revision(), store.list(BEATS, None).0.len()) == (first, 0));
        // No commit is needed for them.
        gate.allow(2);
        assert!(outcomes(on_their_way).await.iter().all(Result::is_ok));
        assert!(outcomes(beats).await.iter().all(Result::is_ok));
        assert_eq!((store.revision(), store.list(BEATS, None).0.len()), (first + 40, 20));
        gate.allow(usize::MAX);
    });
}

#[test]
fn an_end_waits_for_what_is_on_its_way_and_what_follows() {
    on_both(async |medium| {
        let (store, gate, _, on_their_way) = with_a_commit_on_its_way(&*medium).await;
        let next = send(&store, many("b", 20)).await;
        let closing = {
            let store = store.clone();
            tokio::spawn(async move { store.close().await })
        };
        tokio::task::yield_now().await;
        let late = store.write(put("late", Expected::Absent, "1")).await;
        assert!(matches!(late, Err(Error::Closed)), "{late:?}");
        gate.allow(usize::MAX);
        closing.await.unwrap().unwrap();
        assert!(outcomes(on_their_way).await.iter().chain(&outcomes(next).await).all(Result::is_ok));
        assert_eq!(names(&medium.start()).len(), 41);
    });
}

#[test]
fn the_time_in_which_the_disk_took_nothing_is_told() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, gate, _, on_their_way) = with_a_commit_on_its_way(&Memory::default()).await;
        while store.stalled().is_zero() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let told = store.stalled();
        gate.allow(2);
        outcomes(on_their_way).await.into_iter().for_each(|outcome| drop(outcome.unwrap()));
        let ended = store.stalled();
        assert!(ended >= told, "{ended:?} after {told:?}");
        assert_eq!(store.stalled(), ended, "it has ended");
    });
}
