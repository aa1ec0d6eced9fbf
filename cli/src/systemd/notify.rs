//! Decides which messages systemd gets: each change once, watchdog pings at their interval. Pure; time is passed in.

use std::time::Duration;

use super::state::{Phase, State};

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Ready,
    Reloading,
    Stopping,
    Status(String),
    Watchdog,
    /// Startup makes progress and gets more time.
    ExtendTimeout,
}

/// The state that systemd has been notified of.
#[derive(Debug)]
pub(super) struct SentState {
    /// The interval of watchdog pings; `None` without a watchdog.
    watchdog_interval: Option<Duration>,
    /// READY=1 was sent; a reload returns to that.
    started: bool,
    /// The phase that systemd was notified of.
    state: Phase,
    status: String,
    last_ping_at: Option<Duration>,
}

impl SentState {
    pub(super) fn new(watchdog_interval: Option<Duration>) -> Self {
        Self { watchdog_interval, started: false, state: Phase::Starting, status: String::new(), last_ping_at: None }
    }

    /// The messages due at `now`.
    pub(super) fn next(&mut self, phase: Phase, state_of: &State, now: Duration) -> Vec<Message> {
        let mut all = Vec::new();
        self.started |= phase == Phase::Started;
        // Until it has started, systemd sees a service that starts, unless it stops.
        let state = if self.started || phase == Phase::Stopping { phase } else { Phase::Starting };
        if state != self.state {
            match state {
                Phase::Started => all.push(Message::Ready),
                Phase::Reloading => all.push(Message::Reloading),
                Phase::Stopping => all.push(Message::Stopping),
                Phase::Starting => {}
            }
            self.state = state;
        }
        if state_of.status != self.status {
            self.status.clone_from(&state_of.status);
            all.push(Message::Status(state_of.status.clone()));
        }
        if !state_of.alive {
            return all;
        }
        if state_of.starting {
            all.push(Message::ExtendTimeout);
        }
        if let Some(watchdog_interval) = self.watchdog_interval
            && self.last_ping_at.is_none_or(|at| now.saturating_sub(at) >= watchdog_interval)
        {
            self.last_ping_at = Some(now);
            all.push(Message::Watchdog);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(status: &str, alive: bool, starting: bool) -> State {
        State { status: status.to_owned(), alive, starting }
    }

    fn status(text: &str) -> Message {
        Message::Status(text.to_owned())
    }

    #[test]
    fn a_life() {
        let mut script = SentState::new(Some(Duration::from_secs(30)));
        let at = |script: &mut SentState, seconds, phase, state_of: &State| {
            script.next(phase, state_of, Duration::from_secs(seconds))
        };
        let starting = state_of("starting", true, true);
        assert_eq!(
            at(&mut script, 0, Phase::Starting, &starting),
            [status("starting"), Message::ExtendTimeout, Message::Watchdog]
        );
        assert_eq!(at(&mut script, 5, Phase::Starting, &starting), [Message::ExtendTimeout]);
        // A start that reads its settings again is still a start.
        assert_eq!(at(&mut script, 6, Phase::Reloading, &starting), [Message::ExtendTimeout]);
        let fine = state_of("Ready", true, false);
        assert_eq!(at(&mut script, 7, Phase::Started, &fine), [Message::Ready, status("Ready")]);
        assert_eq!(at(&mut script, 29, Phase::Started, &fine), []);
        assert_eq!(at(&mut script, 30, Phase::Started, &fine), [Message::Watchdog]);
        assert_eq!(at(&mut script, 59, Phase::Started, &fine), []);
        let reading = state_of("reading", true, false);
        assert_eq!(
            at(&mut script, 60, Phase::Reloading, &reading),
            [Message::Reloading, status("reading"), Message::Watchdog]
        );
        assert_eq!(at(&mut script, 61, Phase::Started, &fine), [Message::Ready, status("Ready")]);
        // A hung process says so, and sends no more watchdog pings.
        let hangs = state_of("hangs", false, false);
        assert_eq!(at(&mut script, 95, Phase::Started, &hangs), [status("hangs")]);
        assert_eq!(at(&mut script, 300, Phase::Started, &hangs), []);
        assert_eq!(at(&mut script, 301, Phase::Started, &fine), [status("Ready"), Message::Watchdog]);
        assert_eq!(at(&mut script, 302, Phase::Stopping, &fine), [Message::Stopping]);
        assert_eq!(at(&mut script, 303, Phase::Stopping, &fine), []);
    }

    #[test]
    fn a_hanging_start_is_not_extended_and_without_watchdog_no_pings() {
        let mut script = SentState::new(None);
        assert_eq!(script.next(Phase::Starting, &state_of("hangs", false, true), Duration::ZERO), [status("hangs")]);
        assert_eq!(
            script.next(Phase::Started, &state_of("Ready", true, false), Duration::from_secs(99)),
            [Message::Ready, status("Ready")]
        );
        assert_eq!(
            script.next(Phase::Stopping, &state_of("ending", true, false), Duration::from_secs(99)),
            [Message::Stopping, status("ending")]
        );
    }
}
