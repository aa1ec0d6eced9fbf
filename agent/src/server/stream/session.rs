//! A session between a client's connection, of whatever protocol, and a process: streams, terminal sizes and an exit
//! status.

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

/// Idle connections are closed after this; upstream's `streamingConnectionIdleTimeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Interval of heartbeats, by which a dead peer is noticed; clients do the same.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a client has to close its side at the end.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Size {
    pub(super) width: u16,
    pub(super) height: u16,
}

/// The streams that a client requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RequestedStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// Output to the client.
#[derive(Debug)]
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The final status.
    End(ExitStatus),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// A command with its exit code.
    Exited(i64),
    /// An attached process, which has no exit code.
    Done,
    /// It could not be run, or its exit code is unknown.
    Failed(String),
}

impl ExitStatus {
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

    /// The text that clients of older versions read; empty on success.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Exited(0) | Self::Done => String::new(),
            Self::Exited(code) => format!("command terminated with non-zero exit code: exit status {code}"),
            Self::Failed(why) => format!("error executing command in container: {why}"),
        }
    }
}

/// The client's side of a process. Every channel holds a few chunks only, for backpressure.
#[derive(Debug)]
pub(super) struct Session {
    /// `None` when the client did not ask for it; closed when the client has closed it.
    pub(super) stdin: Option<mpsc::Receiver<Bytes>>,
    pub(super) sizes: watch::Receiver<Option<Size>>,
    pub(super) output: mpsc::Sender<Output>,
    /// Cancelled when the client is gone.
    pub(super) client_gone: CancellationToken,
}

/// When data was last sent or received.
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
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + IDLE_TIMEOUT
    }

    /// Resolves when the connection has been idle for too long.
    pub(super) async fn wait_idle(&self) {
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
        assert_eq!(ExitStatus::Exited(0).status(), json!({"metadata": {}, "status": "Success"}));
        assert_eq!(ExitStatus::Done.text(), "");
        let status = ExitStatus::Exited(3).status();
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        assert_eq!(ExitStatus::Failed("no".into()).status()["code"], 500);
    }

    #[test]
    fn what_is_said_puts_the_end_off() {
        let activity = Activity::new();
        let before = activity.until();
        assert_eq!(before, activity.begun + IDLE_TIMEOUT);
        while activity.until() == before {
            activity.clone().touch();
        }
        assert!(activity.until() > before);
    }
}
