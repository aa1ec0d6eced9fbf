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
