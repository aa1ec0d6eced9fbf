//! `windlass agent --kubeconfig F`: a node of an existing cluster.

use std::process::ExitCode;

use super::{require_root, run_node::run_node, runtime, say};
use crate::{
    assemble,
    config::{ClusterAccessFlags, Flags, IdentityFlags, Settings},
    exit,
    instance::{Instance, Lock},
    service,
    systemd::ServiceKind,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) identity: IdentityFlags,
    #[command(flatten)]
    pub(super) cluster_access: ClusterAccessFlags,
}

pub(super) fn run(settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
    require_root("windlass agent")?;
    anyhow::ensure!(
        !assemble::is_being_purged(&settings.data_dir),
        "the removal of {} has begun and not ended: something in it was in use. Run `windlass leave --purge` or `windlass down --purge` again",
        settings.data_dir.display()
    );
    let _instance = match Instance::lock(&settings.run_dir)? {
        Lock::Acquired(instance) => instance,
        Lock::Held(pid) => {
            let running = anyhow::anyhow!(
                "another windlass is running with the run-time directory {} (process {}); stop it, or set another --run-dir and --data-dir",
                settings.run_dir.display(),
                pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
            );
            exit::report(&running);
            return Ok(ExitCode::from(if service::is_awaited() { exit::RUNNING } else { exit::FAILED }));
        }
    };
    let announce = async |waiter: assemble::Waiter| {
        waiter.ready().await;
        tracing::info!(node = settings.node_name, "the node is Ready");
        say(format!("node {} is Ready", settings.node_name));
    };
    let node = assemble::member(settings);
    runtime()?.block_on(run_node(ServiceKind::Node, (settings, flags), None, node, announce))?;
    Ok(ExitCode::SUCCESS)
}
