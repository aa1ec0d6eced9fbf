//! An API server alone, as kube-apiserver is one: nothing but itself changes its objects.

use tokio_util::sync::CancellationToken;
use windlass_control::{Config, ControlPlane};
use windlass_kit::supervise::Supervisor;

use super::Node;
use crate::config::connect::install_crypto;

/// Whether a group version is served.
pub(crate) type IsServed<'a> = &'a dyn Fn(&str, &str) -> bool;

/// Starts it, unless `check` refuses what it serves.
pub(crate) async fn api_server(
    config: Config,
    check: impl FnOnce(IsServed<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Node> {
    install_crypto();
    let plane = ControlPlane::open(config).await?;
    check(&|group, version| plane.serves(group, version))?;
    let listeners = plane.listen().await?;
    let mut tasks = Supervisor::new(CancellationToken::new());
    plane.start(listeners, &mut tasks);
    Ok(Node { tasks, liveness: None, plane: Some(plane), dns_ready: None })
}
