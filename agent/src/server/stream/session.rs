//! What lies between a client's connection, whatever it speaks, and a process: bytes, sizes and an ending.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// A connection on which nothing is sent for so long is closed; upstream's `streamingConnectionIdleTimeout`.
const IDLE: Duration = Duration::from_secs(4 * 3600);
/// How often a word is sent that needs no answer, so that a dead peer is noticed; clients do the same.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a client has to close its side once everything is said.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Size {
    pub(super) width: u16,
    pub(super) height: u16,
}

/// Which streams a client has asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// What goes to the client.
#[derive(Debug)]
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last word.
    End(Ending),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// A command with its exit code.
    Exited(i64),
    /// What has no exit code of its own: an attachment.
    Done,
    /// It could not be run, or seen to its end.
    Failed(String),
}

impl Ending {
    /// The `Status` object that clients read since version 4 of the protocol.
    pub(super) fn status(&self) -> Value {
        match self {
            Self::Exited(0) | Self::Done => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": self.text(),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {}", self.text()),
                "details": {"causes": [{"message": why}]},
            }),
        }
    }

    /// What clients of older versions read; nothing after a success.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Exited(0) | Self::Done => String::new(),
            Self::Exited(code) => format!("command terminated with non-zero exit code: exit status {code}"),
            Self::Failed(why) => format!("error executing command in container: {why}"),
        }
    }
}

/// A client's side of a command. Every channel holds a few pieces only, so whoever is slow slows the other down.
#[derive(Debug)]
pub(super) struct Session {
    /// `None` when the client did not ask for it; closed when the client has closed it.
    pub(super) stdin: Option<mpsc::Receiver<Bytes>>,
    pub(super) sizes: watch::Receiver<Option<Size>>,
    pub(super) output: mpsc::Sender<Output>,
    /// Cancelled when the client is gone.
    pub(super) gone: CancellationToken,
}

/// When something was last sent or received.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    begun: Instant,
    /// Milliseconds since then.
    last: Arc<AtomicU64>,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), last: Arc::default() }
    }

    pub(super) fn touch(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn until(&self) -> Instant {
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + IDLE
    }

    /// Ends when nothing has happened for too long.
    pub(super) async fn is_idle(&self) {
        while self.until() > Instant::now() {
            tokio::time::sleep_until(self.until()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings() {
        assert_eq!(Ending::Exited(0).status(), json!({"metadata": {}, "status": "Success"}));
        assert_eq!(Ending::Done.text(), "");
        let status = Ending::Exited(3).status();
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        assert_eq!(Ending::Failed("no".into()).status()["code"], 500);
    }

    #[test]
    fn what_is_said_puts_the_end_off() {
        let activity = Activity::new();
        let before = activity.until();
        assert_eq!(before, activity.begun + IDLE);
        while activity.until() == before {
            activity.clone().touch();
        }
        assert!(activity.until() > before);
    }
}
