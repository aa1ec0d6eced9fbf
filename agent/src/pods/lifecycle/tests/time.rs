//! Docker's times, as they are normalize_times when clocks differ.

use super::*;
use crate::pods::lifecycle::time::normalize_times;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn nothing_has_happened_in_the_future() {
    let running = |pid, since| instance("c", 0, State::Running { pid, started_at: second(since) });
    let since = |instance: Instance| match instance.state {
        State::Running { started_at, .. } => started_at,
        _ => Timestamp::MIN,
    };
    let now = second(1000);
    assert_eq!(since(normalize_times(running(1, 5000), None, false, now)), now);
    assert_eq!(since(normalize_times(running(1, 900), None, false, now)), second(900));
    // The same run, recorded before the clock was set.
    assert_eq!(since(normalize_times(running(1, 5000), Some(&running(1, 700)), true, now)), second(700));
    assert_eq!(since(normalize_times(running(2, 990), Some(&running(1, 700)), true, now)), second(990));
    assert_eq!(since(normalize_times(running(1, 800), Some(&running(1, 700)), false, now)), second(800));
}

/// Somebody sets the clock a day ahead and back: neither a deadline nor a back-off has come any nearer.
#[test]
fn a_clock_that_jumps_ages_no_pod() {
    const DAY: i64 = 86_400;
    let mut pod = pod("Always", 1);
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(3600);
    let start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1000)));
    pod.status = Some(PodStatus { start_time, ..PodStatus::default() });
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 1, exited(1, 1000, 1050)));
    observed.crash_counts.insert("c0".to_owned(), 1);
    let seen = |observed: &Observed, now: i64| {
        let view = PodView::new(&pod, observed, at(now)).unwrap();
        let plan = next(&pod, observed, now);
        let until = |time: Timestamp| time.as_second() - at(now).as_second();
        (view.is_deadline_exceeded(), until(view.deadline().unwrap()), creates(&plan), plan.wake_at.map(until))
    };
    let before = seen(&observed, 1055);
    assert_eq!(before, (false, 3545, Vec::new(), Some(5)));
    for by in [DAY, -2 * DAY, DAY] {
        // As the worker does with all that it remembers.
        observed.shift_times(jiff::SignedDuration::from_secs(by));
        observed.start_shift += jiff::SignedDuration::from_secs(by);
        let now = 1055 + observed.start_shift.as_secs();
        assert_eq!(seen(&observed, now), before, "after {by} s");
    }
    assert!(seen(&observed, 4600).0, "it is exceeded when its time has come");
}
