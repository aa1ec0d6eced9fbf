//! Rate limits repeated log lines: the first few are logged, the rest are counted. The decision is pure, with time
//! passed in; [`SharedRateLimiter`] is the process's.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    fmt::{self, Write as _},
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// Equal lines logged per [`WINDOW`].
const MAX_PER_WINDOW: u64 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// Distinct lines that are tracked; beyond that all are logged.
const MAX_LINES: usize = 2048;

/// A suppressed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SuppressedLine {
    pub(super) level: Level,
    pub(super) target: &'static str,
    pub(super) text: String,
    /// How often it was suppressed.
    pub(super) suppressed_count: u64,
    /// The end of its window.
    until: Duration,
}

#[derive(Debug, Default)]
struct RateLimiter {
    /// By fingerprint.
    lines: HashMap<u64, LineCount>,
}

#[derive(Debug)]
struct LineCount {
    logged: u64,
    until: Duration,
    /// The suppressed line, once there is one.
    suppressed: Option<SuppressedLine>,
}

impl RateLimiter {
    /// Whether the line with this fingerprint is logged at `now`.
    fn allow(&mut self, fingerprint: u64, now: Duration, line: impl FnOnce() -> (Level, &'static str, String)) -> bool {
        if let Some(count) = self.lines.get_mut(&fingerprint) {
            // An expired one with suppressed lines is first reported by `due`.
            if count.until > now || count.suppressed.is_some() {
                if count.logged < MAX_PER_WINDOW {
                    count.logged += 1;
                    return true;
                }
                let until = count.until;
                let suppressed = count.suppressed.get_or_insert_with(|| {
                    let (level, target, text) = line();
                    SuppressedLine { level, target, text, suppressed_count: 0, until }
                });
                suppressed.suppressed_count += 1;
                return false;
            }
        } else if self.lines.len() >= MAX_LINES {
            self.lines.retain(|_, count| count.until > now || count.suppressed.is_some());
            if self.lines.len() >= MAX_LINES {
                return true;
            }
        }
        self.lines.insert(fingerprint, LineCount { logged: 1, until: now + WINDOW, suppressed: None });
        true
    }

    /// Removes and returns the suppressed lines whose window has ended at `now`.
    fn due(&mut self, now: Duration) -> Vec<SuppressedLine> {
        let over: Vec<u64> =
            self.lines.iter().filter(|(_, count)| count.until <= now).map(|(fingerprint, _)| *fingerprint).collect();
        let mut lines: Vec<SuppressedLine> =
            over.into_iter().filter_map(|fingerprint| self.lines.remove(&fingerprint)?.suppressed).collect();
        lines.sort_by(|a, b| (a.until, &a.text).cmp(&(b.until, &b.text)));
        lines
    }
}

/// The rate limiter of the process.
#[derive(Debug, Default)]
pub(super) struct SharedRateLimiter(Mutex<RateLimiter>);

impl SharedRateLimiter {
    fn lock(&self) -> MutexGuard<'_, RateLimiter> {
        self.0.lock()
    }

    pub(super) fn allow(&self, event: &Event<'_>, now: Duration) -> bool {
        // Formatted outside the lock: a value that logs while it is formatted would deadlock.
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let mut fingerprint = DefaultHasher::new();
        (metadata.callsite(), &text.0).hash(&mut fingerprint);
        self.lock().allow(fingerprint.finish(), now, || (*metadata.level(), metadata.target(), text.0))
    }

    pub(super) fn due(&self, now: Duration) -> Vec<SuppressedLine> {
        self.lock().due(now)
    }

    pub(super) fn all(&self) -> Vec<SuppressedLine> {
        self.lock().due(Duration::MAX)
    }
}

/// A line's message and fields.
#[derive(Debug, Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.0, "{space}{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn allow(repeats: &mut RateLimiter, fingerprint: u64, now: Duration) -> bool {
        repeats.allow(fingerprint, now, || (Level::ERROR, "windlass", format!("line {fingerprint}")))
    }

    #[test]
    fn the_first_few_are_logged_and_the_rest_are_counted() {
        let mut repeats = RateLimiter::default();
        let logged = (0..1000).filter(|i| allow(&mut repeats, 1, at(i / 100))).count();
        assert_eq!(logged, 5);
        assert!(allow(&mut repeats, 2, at(9)), "another line is another");
        assert_eq!(repeats.due(at(59)), []);
        let due = repeats.due(at(60));
        assert!(due.len() == 1 && due[0].suppressed_count == 995 && due[0].text == "line 1", "{due:?}");
        // It begins again.
        assert_eq!((0..10).filter(|_| allow(&mut repeats, 1, at(61))).count(), 5);
    }

    #[test]
    fn nothing_is_lost_without_a_count() {
        let mut repeats = RateLimiter::default();
        let mut asked = 0;
        let mut known = 0;
        for second in 0..600 {
            for fingerprint in 0..3 {
                for _ in 0..=fingerprint {
                    asked += 1;
                    known += u64::from(allow(&mut repeats, fingerprint, at(second)));
                }
            }
            // The check may be late, or fall between a line's interval and its report.
            if second % 7 == 0 {
                known += repeats.due(at(second)).iter().map(|line| line.suppressed_count).sum::<u64>();
            }
        }
        known += repeats.due(Duration::MAX).iter().map(|line| line.suppressed_count).sum::<u64>();
        assert_eq!(known, asked);
    }

    #[test]
    fn an_occasional_line_is_always_logged() {
        let mut repeats = RateLimiter::default();
        assert!((0..100).all(|i| allow(&mut repeats, 1, at(i * 13))), "five a minute");
        assert_eq!(repeats.due(Duration::MAX), []);
    }

    #[test]
    fn lines_beyond_the_limit_are_all_logged() {
        let mut repeats = RateLimiter::default();
        for fingerprint in 0..u64::try_from(MAX_LINES).unwrap() * 2 {
            assert!(allow(&mut repeats, fingerprint, at(0)));
        }
        assert!((0..100).all(|_| allow(&mut repeats, 1_000_000, at(0))), "not remembered, so not counted");
        assert!(repeats.lines.len() <= MAX_LINES);
        // Those whose time is over make room.
        assert!((0..100).filter(|_| allow(&mut repeats, 1_000_000, at(61))).count() == 5);
    }
}
