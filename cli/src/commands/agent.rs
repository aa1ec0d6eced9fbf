//! `windlass agent --kubeconfig F`: a node of an existing cluster.

use std::{convert::Infallible, path::PathBuf, process::ExitCode};

use super::{asked_to_end, require_root, runtime, say};
use crate::{
    assemble,
    config::{Flags, Settings},
    instance::{Instance, Taken},
    logging,
    reload::Reloader,
    systemd::{Kind, Manager},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Credentials of this node [default: kubelet.conf in the data folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Credentials to ask for the node's own with, while the kubeconfig is not there or its certificate has ended
    #[arg(long, value_name = "FILE")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether the node's certificate is renewed before its end, by a request to the cluster [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) rotate_certificates: Option<bool>,
    /// Whether the certificate of the node's own API is asked for from the cluster too, as serverTLSBootstrap [default: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) rotate_server_certificates: Option<bool>,
    /// Another API server of the same cluster, asked when the kubeconfig's does not answer; may be given more than once
    #[arg(long = "server", value_name = "URL")]
    pub(crate) servers: Vec<http::Uri>,
    /// Certificate of the node's own API [default: one that the node signs itself]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// Certificate authority whose clients the node's own API trusts [default: that of the kubeconfig's current context]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// Leave services to another proxy
    #[arg(long)]
    pub(crate) no_proxy: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
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
        let mut node = assemble::member(settings, args).await?;
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
