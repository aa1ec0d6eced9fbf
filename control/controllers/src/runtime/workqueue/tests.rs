use std::collections::HashSet;

use proptest::prelude::*;
use windlass_kit::prometheus::Text;

use super::*;

#[test]
fn a_key_waits_once_and_has_one_worker() {
    let (mut state, now) = (State::default(), Instant::now());
    state.add("a", now);
    state.add("a", now);
    assert_eq!(state.take(now), Some("a"));
    assert_eq!(state.take(now), None);
    state.add("a", now);
    assert_eq!(state.take(now), None, "someone works on it");
    state.done("a", Outcome::Done, now);
    assert_eq!(state.take(now), Some("a"), "added meanwhile");
    state.done("a", Outcome::Done, now);
    assert_eq!(state.take(now), None);
}

#[test]
fn failures_wait_longer_each_time() {
    let (mut state, mut now) = (State::default(), Instant::now());
    state.add("a", now);
    for expected in [5, 10, 20, 40] {
        assert_eq!(state.take(now), Some("a"));
        state.done("a", Outcome::Failed, now);
        let due = state.advance(now).unwrap();
        assert_eq!((due - now).as_millis(), expected);
        now = due;
        assert_eq!(state.advance(now), None);
    }
    assert_eq!(state.take(now), Some("a"));
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
    assert_eq!(state.take(now), Some("a"));
    assert_eq!(state.take(now), None);
}

#[tokio::test]
async fn works_in_time_and_ends_on_shutdown() {
    let (queue, shutdown) = (WorkQueue::<String>::new("test", "test", &Arc::default()), CancellationToken::new());
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
                seen.lock().push((key, start.elapsed() >= Duration::from_millis(40)));
                if later {
                    stop.cancel();
                }
                Ok::<_, String>(Outcome::Done)
            }
        })
        .await;
    assert_eq!(*seen.lock(), [("now".to_owned(), false), ("later".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn metrics_follow_upstreams() {
    let metrics: Arc<QueueMetrics> = Arc::default();
    let queue: WorkQueue<u8> = WorkQueue::new("q", "c", &metrics);
    let begun = Instant::now();
    let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    for key in [1, 1, 2, 3] {
        queue.add(key);
    }
    pass(2).await;
    assert_eq!((queue.next().await, queue.next().await), (1, 2));
    pass(4).await;
    queue.add(1);
    queue.add_after(9, Duration::from_secs(60));
    queue.done(2, Outcome::Failed);
    let page = |now| {
        let mut page = Text::new();
        metrics.write(&mut page, now);
        page.finish()
    };
    let text = page(begun + Duration::from_secs(7));
    for line in [
        "workqueue_adds_total{name=\"q\"} 4",
        "workqueue_retries_total{name=\"q\"} 2",
        "workqueue_queue_duration_seconds_bucket{name=\"q\",le=\"10\"} 2",
        "workqueue_queue_duration_seconds_sum{name=\"q\"} 4",
        "workqueue_work_duration_seconds_bucket{name=\"q\",le=\"1\"} 0",
        "workqueue_work_duration_seconds_sum{name=\"q\"} 4",
        "workqueue_work_duration_seconds_count{name=\"q\"} 1",
        "workqueue_depth{name=\"q\"} 1",
        "workqueue_unfinished_work_seconds{name=\"q\"} 5",
        "workqueue_longest_running_processor_seconds{name=\"q\"} 5",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
    }
    // A queue in its place begins empty; what was counted stays.
    let again: WorkQueue<u8> = WorkQueue::new("q", "c", &metrics);
    again.add(7);
    let text = page(Instant::now());
    assert!(text.contains("workqueue_unfinished_work_seconds{name=\"q\"} 0\n"), "{text}");
    assert!(text.contains("workqueue_adds_total{name=\"q\"} 5\n"), "{text}");
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
                Step::Add(key) => { state.add(key, now); owed.insert(key); }
                Step::AddAt(key, delay) => { state.add_at(key, now + Duration::from_millis(delay)); owed.insert(key); }
                Step::Take => if let Some(key) = state.take(now) {
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
        while let Some(key) = state.take(now) { owed.remove(&key); state.done(key, Outcome::Done, now); }
        prop_assert!(owed.is_empty(), "lost {owed:?}");
    }
}
