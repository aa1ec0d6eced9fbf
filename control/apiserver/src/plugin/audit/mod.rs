//! The audit log: which requests are recorded, by the rules of a policy file, and the file that they are written to.

mod event;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod log_file;
mod policy;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use windlass_kit::{
    metrics::Registry,
    prometheus::{Kind, Text},
};

use crate::apiserver::{Attributes, AuditEvent, AuditRule, AuditSink, User};
use log_file::{LogFile, Retention};
use policy::Policy;

/// Events that wait to be written; upstream's number.
const MAX_QUEUED_EVENTS: usize = 10_000;
/// Bytes of bodies that wait to be written.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// How often lost events are warned about.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Configuration of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file that events are appended to, a line of JSON each.
    pub path: PathBuf,
    /// The file with the policy; without one the metadata of all requests is recorded.
    pub policy: Option<PathBuf>,
    /// The size of the file, in MiB, at which another is begun.
    pub max_size: u64,
    /// How many older files are kept.
    pub max_backups: usize,
    /// How many days they are kept; 0 for no limit.
    pub max_age_days: u32,
}

/// Why there can be no audit log.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The log file.
    #[error("the audit log {path} cannot be written: {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The policy file.
    #[error("the audit policy {path} cannot be used: {reason}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Writes events in a thread of its own. What comes faster than the disk takes it is lost, counted and warned about:
/// requests never wait.
#[derive(Debug)]
pub(crate) struct AuditLog {
    policy: Policy,
    sender: SyncSender<AuditEvent>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    queued_bytes: AtomicUsize,
    written: AtomicU64,
    lost: AtomicU64,
}

impl AuditLog {
    /// Reads the policy and opens the file.
    ///
    /// # Errors
    /// Which of both cannot be used, and why.
    pub(crate) fn open(config: &AuditConfig) -> Result<Self, AuditError> {
        let policy = config.policy.as_deref().map_or_else(|| Ok(Policy::default()), read_policy)?;
        let failed = |source| AuditError::Log { path: config.path.clone(), source };
        let retention = Retention { max_backups: config.max_backups, max_age_days: config.max_age_days };
        let file = LogFile::open(&config.path, config.max_size << 20, retention).map_err(failed)?;
        let (sender, receiver) = mpsc::sync_channel(MAX_QUEUED_EVENTS);
        let counts = Arc::<Counts>::default();
        let of_writer = Arc::clone(&counts);
        let run = move || write_all(&receiver, file, &of_writer);
        std::thread::Builder::new().name("audit log".to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { policy, sender, counts })
    }

    /// Shows how many events were written and lost, by upstream's names.
    pub(crate) fn register_metrics(&self, registry: &Registry) {
        let counts = Arc::clone(&self.counts);
        registry.register(move |page: &mut Text| {
            let total = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
            page.family("apiserver_audit_event_total", "Audit events written.", Kind::Counter);
            page.sample("apiserver_audit_event_total", &[], total(&counts.written));
            page.family("apiserver_audit_error_total", "Audit events lost.", Kind::Counter);
            page.sample("apiserver_audit_error_total", &[("plugin", "log")], total(&counts.lost));
        });
    }
}

fn read_policy(path: &Path) -> Result<Policy, AuditError> {
    let wrong = |reason: String| AuditError::Policy { path: path.to_owned(), reason };
    let text = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
    Policy::parse(&text).map_err(wrong)
}

impl AuditSink for AuditLog {
    fn rule(&self, user: &User, attributes: &Attributes<'_>) -> AuditRule {
        self.policy.rule(user, attributes)
    }

    fn record(&self, event: AuditEvent) {
        let bytes = body_bytes(&event);
        let lost = || {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        };
        if self.counts.queued_bytes.fetch_add(bytes, Ordering::Relaxed) > MAX_QUEUED_BYTES
            || self.sender.try_send(event).is_err()
        {
            self.counts.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            lost();
        }
    }
}

/// The memory that the bodies of an event take, about: those of requests are decoded and of a known greatest size.
fn body_bytes(event: &AuditEvent) -> usize {
    const REQUEST_BYTES: usize = 4 << 10;
    event.request_object.as_ref().map_or(0, |_| REQUEST_BYTES)
        + event.response_object.as_ref().map_or(0, |body| body.len())
}

/// Writes events until all senders are dropped.
fn write_all(receiver: &Receiver<AuditEvent>, mut file: LogFile, counts: &Counts) {
    let mut warned = (Instant::now(), 0);
    loop {
        match receiver.recv_timeout(WARN_INTERVAL) {
            Ok(event) => {
                counts.queued_bytes.fetch_sub(body_bytes(&event), Ordering::Relaxed);
                let mut line = event::to_json(&event).to_string().into_bytes();
                line.push(b'\n');
                match file.append(&line) {
                    Ok(()) => drop(counts.written.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => {
                        counts.lost.fetch_add(1, Ordering::Relaxed);
                        tracing::debug!(%error, "audit event could not be written");
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let lost = counts.lost.load(Ordering::Relaxed);
        if lost > warned.1 && warned.0.elapsed() >= WARN_INTERVAL {
            let since = lost - warned.1;
            tracing::warn!(lost = since, path = %file.path().display(), "audit events were lost: the disk fails or is slower than requests come");
            warned = (Instant::now(), lost);
        }
    }
}
