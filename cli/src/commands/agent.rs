//! `windlass agent --kubeconfig F`: a node of an existing cluster.

use std::{convert::Infallible, process::ExitCode};

use super::{asked_to_end, require_root, runtime, say};
use crate::{
    assemble,
    config::{Flags, IdentityFlags, MembershipFlags, Settings},
    instance::{Instance, Taken},
    logging,
    reload::Reloader,
    systemd::{Kind, Manager},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) identity: IdentityFlags,
    #[command(flatten)]
    pub(super) membership: MembershipFlags,
}

pub(super) fn run(settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
    require_root("windlass agent")?;
    let _instance = match Instance::take_to_start(&settings.run_dir)? {
        Taken::Ours(instance) => instance,
        Taken::Theirs(pid) => {
            anyhow::bail!(
                "another windlass runs with the run-time folder {} (process {}); stop it, or give this one its own --run-dir and --data-dir",
                settings.run_dir.display(),
                pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
            )
        }
    };
    runtime()?.block_on(async {
        let reloader = Reloader::new(flags, settings)?;
        let manager = Manager::start(Kind::Node);
        let mut node = assemble::member(settings).await?;
        if let Some(vitals) = node.vitals() {
            manager.started(vitals);
        }
        let waiter = node.waiter();
        let ended = tokio::select! {
            signal = asked_to_end() => { tracing::info!(signal = signal.unwrap_or("a signal"), "ending: pods and traffic go on"); Ok(()) }
            failed = node.failed() => Err(failed),
            never = reloader.run(&manager) => match never {},
            never = logging::count_up() => match never {},
            never = announce(waiter, settings, &manager) => match never {},
        };
        manager.ending();
        node.shutdown().await;
        ended
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Says when the node is Ready, once, and then waits for ever.
async fn announce(waiter: assemble::Waiter, settings: &Settings, manager: &Manager) -> Infallible {
    waiter.ready(&settings.node_name).await;
    say(format!("node {} is Ready", settings.node_name));
    manager.ready();
    std::future::pending().await
}
