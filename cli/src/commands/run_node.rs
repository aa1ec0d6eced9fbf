//! The main loop of `windlass up` and `windlass agent`.

use std::{convert::Infallible, future::Future, path::Path};

use super::termination_signal;
use crate::{
    assemble::{Node, Waiter},
    config::{Flags, Settings},
    logging,
    reload::Reloader,
    systemd::{Notifier, ServiceKind},
};

/// Starts a node by `start` and runs it until a signal or a failed task; `announce` runs alongside it, and says when it
/// is Ready. `log_file` is rotated, if any.
///
/// # Errors
/// Why it could not be started, or which task failed.
pub(super) async fn run_node(
    kind: ServiceKind,
    (settings, flags): (&Settings, &Flags),
    log_file: Option<&Path>,
    start: impl Future<Output = anyhow::Result<Node>>,
    announce: impl AsyncFnOnce(Waiter),
) -> anyhow::Result<()> {
    let reloader = Reloader::new(flags, settings)?;
    let notifier = Notifier::start(kind);
    let mut node = start.await?;
    let waiter = node.waiter();
    if let Some(started) = node.started() {
        notifier.started(started);
    }
    let announcing = async {
        announce(waiter).await;
        std::future::pending::<Infallible>().await
    };
    let result = tokio::select! {
        signal = termination_signal() => {
            tracing::info!(signal = signal.unwrap_or("a signal"), "stopping; pods and traffic continue");
            Ok(())
        }
        failed = node.failed() => Err(failed),
        never = reloader.run(&notifier) => match never {},
        never = logging::report_suppressed() => match never {},
        never = logging::file::rotate_forever(log_file) => match never {},
        never = announcing => match never {},
    };
    notifier.stopping();
    node.shutdown().await;
    result
}
