use proptest::prelude::*;

use super::*;

#[test]
fn a_key_waits_once_and_has_one_worker() {
    let (mut state, now) = (State::default(), Instant::now());
    state.add("a");
    state.add("a");
    assert_eq!(state.take(), Some("a"));
    assert_eq!(state.take(), None);
    state.add("a");
    assert_eq!(state.take(), None, "someone works on it");
    state.done("a", Outcome::Done, now);
    assert_eq!(state.take(), Some("a"), "added meanwhile");
    state.done("a", Outcome::Done, now);
    assert_eq!(state.take(), None);
}

#[test]
fn failures_wait_longer_each_time() {
    let (mut state, mut now) = (State::default(), Instant::now());
    state.add("a");
    for expected in [5, 10, 20, 40] {
        assert_eq!(state.take(), Some("a"));
        state.done("a", Outcome::Failed, now);
        let due = state.advance(now).unwrap();
        assert_eq!((due - now).as_millis(), expected);
        now = due;
        assert_eq!(state.advance(now), None);
    }
    assert_eq!(state.take(), Some("a"));
    state.done("a", Outcome::Done, now);
    assert!(state.failures.is_empty() && state.due.is_empty());
}

#[test]
fn the_earlier_of_two_delays_stays() {
    let (mut state, now) = (State::default(), Instant::now());
    state.add_at("a", now + Duration::from_secs(5));
    state.add_at("a", now + Duration::from_secs(1));
    state.add_at("a", now + Duration::from_secs(9));
    assert_eq!(state.advance(now), Some(now + Duration::from_secs(1)));
    assert_eq!(state.advance(now + Duration::from_secs(1)), None);
    assert_eq!(state.take(), Some("a"));
    assert_eq!(state.take(), None);
}

#[tokio::test]
async fn works_in_time_and_ends_on_shutdown() {
    let (queue, shutdown) = (WorkQueue::<String>::new(), CancellationToken::new());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    queue.add("now".into());
    queue.add_after("later".into(), Duration::from_millis(40));
    let (seen2, stop) = (Arc::clone(&seen), shutdown.clone());
    queue
        .run("test", 2, shutdown, move |key| {
            let (seen, stop) = (Arc::clone(&seen2), stop.clone());
            async move {
                let later = key == "later";
                seen.lock().unwrap().push((key, start.elapsed() >= Duration::from_millis(40)));
                if later {
                    stop.cancel();
                }
                Ok::<_, String>(Outcome::Done)
            }
        })
        .await;
    assert_eq!(*seen.lock().unwrap(), [("now".to_owned(), false), ("later".to_owned(), true)]);
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    AddAt(u8, u64),
    Take,
    Finish(usize, u8),
    Tick(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..5).prop_map(Step::Add),
        (0u8..5, 0u64..50).prop_map(|(k, d)| Step::AddAt(k, d)),
        Just(Step::Take),
        (any::<usize>(), 0u8..3).prop_map(|(i, o)| Step::Finish(i, o)),
        (0u64..60).prop_map(Step::Tick),
    ]
}

proptest! {
    /// Never two workers on one key, and every key added is taken after its last addition.
    #[test]
    fn nothing_is_lost_or_doubled(steps in prop::collection::vec(step(), 1..200)) {
        let (mut state, mut now) = (State::default(), Instant::now());
        let mut working: Vec<u8> = Vec::new();
        let mut owed: HashSet<u8> = HashSet::new();
        for step in steps {
            match step {
                Step::Add(key) => { state.add(key); owed.insert(key); }
                Step::AddAt(key, delay) => { state.add_at(key, now + Duration::from_millis(delay)); owed.insert(key); }
                Step::Take => if let Some(key) = state.take() {
                    prop_assert!(!working.contains(&key), "two workers on {key}");
                    working.push(key);
                    owed.remove(&key);
                },
                Step::Finish(index, outcome) => if !working.is_empty() {
                    let key = working.swap_remove(index % working.len());
                    let outcome = match outcome {
                        0 => Outcome::Done,
                        1 => Outcome::Failed,
                        _ => Outcome::After(Duration::from_millis(7)),
                    };
                    state.done(key, outcome, now);
                    if outcome != Outcome::Done { owed.insert(key); }
                },
                Step::Tick(by) => { now += Duration::from_millis(by); state.advance(now); }
            }
        }
        for key in working.drain(..) { state.done(key, Outcome::Done, now); }
        while let Some(due) = state.advance(now) { now = due; }
        while let Some(key) = state.take() { owed.remove(&key); state.done(key, Outcome::Done, now); }
        prop_assert!(owed.is_empty(), "lost {owed:?}");
    }
}
