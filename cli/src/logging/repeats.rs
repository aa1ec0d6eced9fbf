//! Lines that say the same again and again: the first few are told, the rest are counted. The decision is pure, with
//! time as a value; [`Shared`] is what all threads of the process ask.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    fmt::{self, Write as _},
    hash::{Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// So many equal lines are told within [`WINDOW`].
const MOST: u64 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// So many different lines are remembered; beyond that all are told.
const ROOM: usize = 2048;

/// What was held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) level: Level,
    pub(super) target: &'static str,
    pub(super) text: String,
    /// How often beyond those that were told.
    pub(super) more: u64,
    /// Until then it is counted.
    until: Duration,
}

#[derive(Debug, Default)]
struct Repeats {
    /// By what makes two lines the same.
    lines: HashMap<u64, Counted>,
}

#[derive(Debug)]
struct Counted {
    told: u64,
    until: Duration,
    /// What was held back, once something was.
    held: Option<Line>,
}

impl Repeats {
    /// Whether the line with this fingerprint may be told at `now`.
    fn may_be_told(&mut self, print: u64, now: Duration, line: impl FnOnce() -> (Level, &'static str, String)) -> bool {
        if let Some(counted) = self.lines.get_mut(&print) {
            // One whose time is over and that held something back is told of first, by `due`.
            if counted.until > now || counted.held.is_some() {
                if counted.told < MOST {
                    counted.told += 1;
                    return true;
                }
                let until = counted.until;
                let held = counted.held.get_or_insert_with(|| {
                    let (level, target, text) = line();
                    Line { level, target, text, more: 0, until }
                });
                held.more += 1;
                return false;
            }
        } else if self.lines.len() >= ROOM {
            self.lines.retain(|_, counted| counted.until > now || counted.held.is_some());
            if self.lines.len() >= ROOM {
                return true;
            }
        }
        self.lines.insert(print, Counted { told: 1, until: now + WINDOW, held: None });
        true
    }

    /// What was held back and whose time is over at `now`; it begins anew.
    fn due(&mut self, now: Duration) -> Vec<Line> {
        let over: Vec<u64> =
            self.lines.iter().filter(|(_, counted)| counted.until <= now).map(|(print, _)| *print).collect();
        let mut lines: Vec<Line> = over.into_iter().filter_map(|print| self.lines.remove(&print)?.held).collect();
        lines.sort_by(|a, b| (a.until, &a.text).cmp(&(b.until, &b.text)));
        lines
    }
}

/// The one memory of the process.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Repeats>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Repeats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn may_be_told(&self, event: &Event<'_>, now: Duration) -> bool {
        // Written outside the lock: a value that logs while it is shown would wait for itself.
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let mut print = DefaultHasher::new();
        (metadata.callsite(), &text.0).hash(&mut print);
        self.lock().may_be_told(print.finish(), now, || (*metadata.level(), metadata.target(), text.0))
    }

    pub(super) fn due(&self, now: Duration) -> Vec<Line> {
        self.lock().due(now)
    }

    pub(super) fn all(&self) -> Vec<Line> {
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

    fn ask(repeats: &mut Repeats, print: u64, now: Duration) -> bool {
        repeats.may_be_told(print, now, || (Level::ERROR, "windlass", format!("line {print}")))
    }

    #[test]
    fn the_first_few_are_told_and_the_rest_are_counted() {
        let mut repeats = Repeats::default();
        let told = (0..1000).filter(|i| ask(&mut repeats, 1, at(i / 100))).count();
        assert_eq!(told, 5);
        assert!(ask(&mut repeats, 2, at(9)), "another line is another");
        assert_eq!(repeats.due(at(59)), []);
        let due = repeats.due(at(60));
        assert!(due.len() == 1 && due[0].more == 995 && due[0].text == "line 1", "{due:?}");
        // It begins anew.
        assert_eq!((0..10).filter(|_| ask(&mut repeats, 1, at(61))).count(), 5);
    }

    #[test]
    fn nothing_is_lost_without_a_count() {
        let mut repeats = Repeats::default();
        let mut asked = 0;
        let mut known = 0;
        for second in 0..600 {
            for print in 0..3 {
                for _ in 0..=print {
                    asked += 1;
                    known += u64::from(ask(&mut repeats, print, at(second)));
                }
            }
            // Whoever looks may be late, and it may come while the time of a line is over.
            if second % 7 == 0 {
                known += repeats.due(at(second)).iter().map(|line| line.more).sum::<u64>();
            }
        }
        known += repeats.due(Duration::MAX).iter().map(|line| line.more).sum::<u64>();
        assert_eq!(known, asked);
    }

    #[test]
    fn a_line_now_and_then_is_always_told() {
        let mut repeats = Repeats::default();
        assert!((0..100).all(|i| ask(&mut repeats, 1, at(i * 13))), "five a minute");
        assert_eq!(repeats.due(Duration::MAX), []);
    }

    #[test]
    fn more_lines_than_there_is_room_for_are_all_told() {
        let mut repeats = Repeats::default();
        for print in 0..u64::try_from(ROOM).unwrap() * 2 {
            assert!(ask(&mut repeats, print, at(0)));
        }
        assert!((0..100).all(|_| ask(&mut repeats, 1_000_000, at(0))), "not remembered, so not counted");
        assert!(repeats.lines.len() <= ROOM);
        // Those whose time is over make room.
        assert!((0..100).filter(|_| ask(&mut repeats, 1_000_000, at(61))).count() == 5);
    }
}
