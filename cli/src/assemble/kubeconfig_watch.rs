//! Watches kubeconfigs that others maintain, with the files and tokens that they name.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use windlass_kit::client::Access;

use crate::config::connect::{access_of, unusable};

/// The interval at which kubeconfigs are reread.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The least time between two reads, after the API refused the credentials.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Updates `access` from a kubeconfig until `shutdown`. If it is invalid, a warning is logged and the previous
/// credentials stay.
pub(super) async fn watch(access: Access, kubeconfig: PathBuf, shutdown: CancellationToken) {
    let mut last_warning = String::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = async { tokio::time::sleep(MIN_POLL_INTERVAL).await; access.unauthorized().await } => {}
        }
        let replaced = match access_of(&kubeconfig).await {
            Ok(config) => access.replace(config).with_context(|| unusable(&kubeconfig)),
            Err(error) => Err(error),
        };
        match replaced {
            Ok(changed) => {
                last_warning.clear();
                if changed {
                    tracing::info!(file = %kubeconfig.display(), "API credentials changed; using the new ones");
                }
            }
            // Files that are being replaced do not match for a moment: logged once, retried.
            Err(error) => {
                let reason = format!("{error:#}");
                if reason != last_warning {
                    tracing::warn!(reason, "changed API credentials are invalid; keeping the old ones, retrying");
                    last_warning = reason;
                }
            }
        }
    }
}
