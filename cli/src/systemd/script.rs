//! Which messages go to systemd, one after the other: each news once, the watchdog as often as it wants to hear of us.
//! Pure; time is given.

use std::time::Duration;

use super::tell::{Phase, Words};

/// One thing to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Ready,
    Reloading,
    Stopping,
    Status(String),
    Alive,
    /// A start that moves is given more time.
    Longer,
}

/// What was said so far.
#[derive(Debug)]
pub(super) struct Script {
    /// How often the watchdog is told; never without one.
    every: Option<Duration>,
    ready: bool,
    /// What systemd takes the state for.
    state: Phase,
    status: String,
    told_alive_at: Option<Duration>,
}

impl Script {
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, ready: false, state: Phase::Opening, status: String::new(), told_alive_at: None }
    }

    /// From now on it is Ready, or will be again after it has read its settings.
    pub(super) fn ready(&mut self) {
        self.ready = true;
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// What is to be said at `now`.
    pub(super) fn next(&mut self, phase: Phase, words: &Words, now: Duration) -> Vec<Message> {
        let mut all = Vec::new();
        // Before it was Ready there is a start under way, which nothing but its end may end.
        let state = if self.ready || phase == Phase::Ending { phase } else { Phase::Waiting };
        if state != self.state {
            match state {
                Phase::Ready => all.push(Message::Ready),
                Phase::Reloading => all.push(Message::Reloading),
                Phase::Ending => all.push(Message::Stopping),
                Phase::Opening | Phase::Waiting => {}
            }
            self.state = state;
        }
        if words.status != self.status {
            self.status.clone_from(&words.status);
            all.push(Message::Status(words.status.clone()));
        }
        if !words.alive {
            return all;
        }
        if words.starting {
            all.push(Message::Longer);
        }
        if let Some(every) = self.every
            && self.told_alive_at.is_none_or(|at| now.saturating_sub(at) >= every)
        {
            self.told_alive_at = Some(now);
            all.push(Message::Alive);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(status: &str, alive: bool, starting: bool) -> Words {
        Words { status: status.to_owned(), alive, starting }
    }

    fn status(text: &str) -> Message {
        Message::Status(text.to_owned())
    }

    #[test]
    fn a_life() {
        let mut script = Script::new(Some(Duration::from_secs(30)));
        let at = |script: &mut Script, seconds, phase, words: &Words| {
            script.next(phase, words, Duration::from_secs(seconds))
        };
        let starting = words("starting", true, true);
        assert_eq!(
            at(&mut script, 0, Phase::Opening, &starting),
            [status("starting"), Message::Longer, Message::Alive]
        );
        assert_eq!(at(&mut script, 5, Phase::Waiting, &starting), [Message::Longer]);
        // A start that reads its settings again is still a start.
        assert_eq!(at(&mut script, 6, Phase::Reloading, &starting), [Message::Longer]);
        script.ready();
        let fine = words("Ready", true, false);
        assert_eq!(at(&mut script, 7, Phase::Ready, &fine), [Message::Ready, status("Ready")]);
        assert_eq!(at(&mut script, 29, Phase::Ready, &fine), []);
        assert_eq!(at(&mut script, 30, Phase::Ready, &fine), [Message::Alive]);
        assert_eq!(at(&mut script, 59, Phase::Ready, &fine), []);
        let reading = words("reading", true, false);
        assert_eq!(
            at(&mut script, 60, Phase::Reloading, &reading),
            [Message::Reloading, status("reading"), Message::Alive]
        );
        assert_eq!(at(&mut script, 61, Phase::Ready, &fine), [Message::Ready, status("Ready")]);
        // Whoever hangs says so, and says no more that it lives.
        let hangs = words("hangs", false, false);
        assert_eq!(at(&mut script, 95, Phase::Ready, &hangs), [status("hangs")]);
        assert_eq!(at(&mut script, 300, Phase::Ready, &hangs), []);
        assert_eq!(at(&mut script, 301, Phase::Ready, &fine), [status("Ready"), Message::Alive]);
        assert_eq!(at(&mut script, 302, Phase::Ending, &fine), [Message::Stopping]);
        assert_eq!(at(&mut script, 303, Phase::Ending, &fine), []);
    }

    #[test]
    fn a_start_that_hangs_is_given_no_more_time_and_one_without_a_watchdog_pings_nobody() {
        let mut script = Script::new(None);
        assert_eq!(script.next(Phase::Opening, &words("hangs", false, true), Duration::ZERO), [status("hangs")]);
        assert_eq!(script.next(Phase::Ready, &words("Ready", true, false), Duration::from_secs(99)), [status("Ready")]);
        assert_eq!(
            script.next(Phase::Ending, &words("ending", true, false), Duration::from_secs(99)),
            [Message::Stopping, status("ending")]
        );
    }
}
