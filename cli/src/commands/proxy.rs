//! `windlass proxy`: the service proxy alone, and its clean-up.

use std::{path::PathBuf, process::ExitCode};

use super::{asked_to_end, require_root, runtime, say};
use crate::{assemble, config::Settings};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Credentials of the proxy
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Remove every rule of the proxy
    Cleanup,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass proxy")?;
    if matches!(args.action, Some(Action::Cleanup)) {
        let problems = assemble::remove_rules(settings);
        anyhow::ensure!(problems.is_empty(), "left behind: {}", problems.join("; "));
        say("the rules of the service proxy are gone");
        return Ok(ExitCode::SUCCESS);
    }
    let Some(kubeconfig) = &args.kubeconfig else {
        anyhow::bail!("windlass proxy needs --kubeconfig FILE");
    };
    runtime()?.block_on(async {
        let mut proxy = assemble::proxy_alone(settings, kubeconfig).await?;
        let ended = tokio::select! {
            signal = asked_to_end() => { tracing::info!(signal = signal.unwrap_or("a signal"), "ending: the rules stay"); Ok(()) }
            failed = proxy.failed() => Err(failed),
        };
        proxy.shutdown().await;
        ended
    })?;
    Ok(ExitCode::SUCCESS)
}
