//! `windlass agent --kubeconfig F`: a node of an existing cluster.

use std::process::ExitCode;

use super::{require_root, run_node::run_node, runtime, say};
use crate::{
    assemble,
    config::{ClusterAccessFlags, Flags, IdentityFlags, Settings},
    instance::{Instance, Lock},
    systemd::{Notifier, ServiceKind},
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
    let _instance = match Instance::lock(&settings.run_dir)? {
        Lock::Acquired(instance) => instance,
        Lock::Held(pid) => {
            anyhow::bail!(
                "another windlass is running with the run-time directory {} (process {}); stop it, or set another --run-dir and --data-dir",
                settings.run_dir.display(),
                pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
            )
        }
    };
    let announce = async |waiter: assemble::Waiter, notifier: &Notifier| {
        waiter.ready(&settings.node_name).await;
        say(format!("node {} is Ready", settings.node_name));
        notifier.ready();
    };
    let node = assemble::member(settings);
    runtime()?.block_on(run_node(ServiceKind::Node, (settings, flags), None, node, announce))?;
    Ok(ExitCode::SUCCESS)
}
