//! After a failed commit the content of the disk is unknown: nothing is written until it holds the published state again.

use std::time::{Duration, Instant};

use super::{
    super::{Error, Health},
    REVISION_HEADROOM, Writer,
};

/// Bounds of the retry interval after a failed write.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

impl Writer {
    /// After a failed commit: tries to restore the published state at once. Returns the error for the writes of the
    /// commit.
    pub(super) fn on_commit_failure(&mut self, error: &Error) -> Error {
        let why = error.to_string();
        if self.last_logged.as_ref() != Some(&why) {
            tracing::error!(%error, "failed to write to disk; refusing writes until the disk matches memory again");
            self.last_logged = Some(why.clone());
        }
        self.failing = Some(why.clone());
        self.shared.health_tx.send_replace(Health::Failing(why.clone()));
        match self.recover() {
            Ok(()) => Error::RolledBack(why),
            Err(_) => Error::OutcomeUnknown(why),
        }
    }

    /// Restores the published state on a disk that a failed commit has left unknown; the error is for writes that were
    /// not attempted.
    pub(super) fn recover(&mut self) -> Result<(), Error> {
        let Some(why) = &self.failing else { return Ok(()) };
        let begun = Instant::now();
        if begun < self.restore_at {
            return Err(Error::RolledBack(why.clone()));
        }
        let restored = self.engine.as_mut().map_or(Ok(()), |engine| engine.restore());
        // The counters are written too, which shows that commits work again.
        let restored = restored.and_then(|()| self.commit(self.revision + REVISION_HEADROOM));
        self.restore_at = Instant::now() + (begun.elapsed() * 10).clamp(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        if let Err(error) = restored {
            let why = error.to_string();
            self.shared.health_tx.send_replace(Health::Failing(why.clone()));
            self.failing = Some(why.clone());
            return Err(Error::RolledBack(why));
        }
        self.failing = None;
        self.last_logged = None;
        self.shared.health_tx.send_replace(Health::Serving);
        tracing::info!("disk accepts writes again");
        Ok(())
    }
}
