//! systemd-logind: shutdown signals and inhibitor locks (`org.freedesktop.login1`).

use std::{path::Path, time::Duration};

use futures::StreamExt as _;
use zbus::{Connection, MatchRule, MessageStream, OwnedFd, message};

const SERVICE: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SIGNAL: &str = "PrepareForShutdown";

/// A failed call to logind.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {source}; is systemd-logind running, with its socket at hand?")]
pub(super) struct LogindError {
    attempt: &'static str,
    source: zbus::Error,
}

fn failed(attempt: &'static str) -> impl FnOnce(zbus::Error) -> LogindError {
    move |source| LogindError { attempt, source }
}

/// The connection to logind, and its signals.
pub(super) struct Logind {
    connection: Connection,
    signals: MessageStream,
}

/// Delays the shutdown until dropped.
#[derive(Debug)]
pub(super) struct InhibitorLock {
    _open: OwnedFd,
}

impl Logind {
    pub(super) async fn connect() -> Result<Self, LogindError> {
        let attempt = "the system's message bus could not be reached";
        let connection = Connection::system().await.map_err(failed(attempt))?;
        let rule = MatchRule::builder().msg_type(message::Type::Signal).sender(SERVICE);
        let rule = rule.path(OBJECT).interface(MANAGER).member(SIGNAL).build();
        let attempt = "the shutdown signal could not be subscribed to";
        let rule = rule.map_err(failed(attempt))?;
        let signals = MessageStream::for_match_rule(rule, &connection, None).await.map_err(failed(attempt))?;
        Ok(Self { connection, signals })
    }

    /// The longest delay that logind grants to inhibitors.
    pub(super) async fn max_delay(&self) -> Result<Duration, LogindError> {
        let attempt = "InhibitDelayMaxSec could not be read";
        let properties = Some("org.freedesktop.DBus.Properties");
        let answer = self
            .connection
            .call_method(Some(SERVICE), OBJECT, properties, "Get", &(MANAGER, "InhibitDelayMaxUSec"))
            .await
            .map_err(failed(attempt))?;
        let value: zbus::OwnedVariant = answer.body().deserialize().map_err(failed(attempt))?;
        let micros = u64::try_from(value).map_err(failed(attempt))?;
        Ok(Duration::from_micros(micros))
    }

    /// Takes an inhibitor lock that delays shutdown.
    pub(super) async fn inhibit(&self) -> Result<InhibitorLock, LogindError> {
        let attempt = "the shutdown inhibitor lock could not be taken";
        let why = ("shutdown", "Windlass", "pods have time to end", "delay");
        let answer = self
            .connection
            .call_method(Some(SERVICE), OBJECT, Some(MANAGER), "Inhibit", &why)
            .await
            .map_err(failed(attempt))?;
        let open: OwnedFd = answer.body().deserialize().map_err(failed(attempt))?;
        Ok(InhibitorLock { _open: open })
    }

    /// Waits for the next signal: `true` when the machine is about to shut down, `false` when the shutdown was
    /// cancelled; `None` when the bus connection is closed.
    pub(super) async fn next(&mut self) -> Option<bool> {
        loop {
            let message = self.signals.next().await?.ok()?;
            if let Ok(begins) = message.body().deserialize() {
                return Some(begins);
            }
        }
    }
}

/// The drop-in file for logind's configuration.
pub(super) const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-windlass.conf";

/// Writes the drop-in file with the longest delay.
pub(super) fn write_delay(file: &Path, delay: Duration) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        windlass_kit::atomic_file::make_dir(dir, 0o755)?;
    }
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    let text = format!(
        "# Written by Windlass: pods have this long to end before the machine does.\n[Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    windlass_kit::atomic_file::write(file, text.as_bytes(), 0o600)
}

impl Logind {
    /// Has systemd reload logind's configuration.
    pub(super) async fn reload(&self) -> Result<(), LogindError> {
        let (service, object) = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1");
        let asked = ("systemd-logind.service", "main", nix::libc::SIGHUP);
        self.connection
            .call_method(Some(service), object, Some("org.freedesktop.systemd1.Manager"), "KillUnit", &asked)
            .await
            .map_err(failed("logind could not be reloaded"))?;
        Ok(())
    }
}
