//! `windlass up`: the node with its own control plane.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{require_root, run_node::run_node, runtime, say};
use crate::{
    assemble,
    config::{Flags, Settings},
    instance::{self, Instance, Lock},
    join::join_dir::JoinDir,
    service,
    systemd::ServiceKind,
};

/// Set for the background process of `--detach`.
const DETACHED: &str = "WINDLASS_DETACHED";
/// How long `--detach` waits for the node to be Ready.
const DETACH_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Return to the prompt once the node is Ready
    #[arg(long)]
    detach: bool,
    /// Serve the API alone: nodes join with `windlass agent`
    #[arg(long)]
    no_node: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
    require_root("windlass up")?;
    let join_dir = JoinDir::in_data_dir(&settings.data_dir);
    anyhow::ensure!(
        !join_dir.exists(),
        "this machine is a node of {}, run by `windlass agent`; leave it with `windlass leave`, or set another --data-dir and --run-dir",
        join_dir.cluster().unwrap_or_else(|| "another cluster".to_owned())
    );
    if args.detach && std::env::var_os(DETACHED).is_none() {
        return detach(settings);
    }
    let detached = std::env::var_os(DETACHED).map(|_| log_file(settings));
    if detached.is_some() {
        // A new session: closing the terminal does not kill the node.
        nix::unistd::setsid().context("the background process could not leave its terminal")?;
    }
    anyhow::ensure!(
        !assemble::is_being_purged(&settings.data_dir),
        "the removal of {} has begun and not ended: something in it was in use. Run `windlass down --purge` again",
        settings.data_dir.display()
    );
    let started = Instant::now();
    let instance = match Instance::lock(&settings.run_dir)? {
        Lock::Acquired(instance) => instance,
        Lock::Held(pid) => {
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            say(format!("windlass is already running (process {pid})"));
            if service::is_awaited() {
                return Ok(ExitCode::from(crate::exit::RUNNING));
            }
            say(next_steps(settings));
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (kind, log_file) = (if args.no_node { ServiceKind::Api } else { ServiceKind::Node }, detached.as_deref());
    let announce = async |waiter: assemble::Waiter| {
        announce(waiter, settings, &instance, started, !args.no_node).await;
    };
    let node = assemble::standalone(settings, !args.no_node);
    runtime()?.block_on(run_node(kind, (settings, flags), log_file, node, announce))?;
    Ok(ExitCode::SUCCESS)
}

/// Announces that the node is Ready, or the API served.
async fn announce(node: assemble::Waiter, settings: &Settings, instance: &Instance, started: Instant, with_node: bool) {
    if with_node {
        node.ready().await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(node = settings.node_name, seconds, "the node is Ready");
        say(format!("node {} is Ready after {seconds:.1} s", settings.node_name));
    } else {
        say(format!("the API is served at https://{}", settings.api_bind_addresses()));
    }
    say(next_steps(settings));
    if let Err(error) = instance.set_ready() {
        tracing::warn!(%error, dir = %settings.run_dir.display(), "failed to write the ready file; windlass up --detach will time out");
    }
}

fn next_steps(settings: &Settings) -> String {
    let kubeconfig = settings.admin_kubeconfig.display();
    let mut steps =
        format!("kubeconfig: {kubeconfig}\n\n  export KUBECONFIG={kubeconfig}\n  kubectl get nodes,pods,services -A");
    if let Some(address) = settings.stats_bind {
        steps.push_str(&format!("\n  curl http://{address}/stats/summary"));
    }
    steps
}

/// The log file of a node in the background.
fn log_file(settings: &Settings) -> PathBuf {
    settings.run_dir.join("windlass.log")
}

/// Starts the same command in the background and waits until its node is Ready.
fn detach(settings: &Settings) -> anyhow::Result<ExitCode> {
    if let Lock::Held(pid) = Instance::lock(&settings.run_dir)? {
        say(format!(
            "windlass is already running (process {})",
            pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
        ));
        say(next_steps(settings));
        return Ok(ExitCode::SUCCESS);
    }
    let log_path = log_file(settings);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(&log_path)
        .with_context(|| format!("the log {} could not be opened", log_path.display()))?;
    let program = std::env::current_exe().context("the path of this program could not be found")?;
    let mut child = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| format!("{} could not be started in the background", program.display()))?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("the background process could not be watched")? {
            anyhow::bail!("the background process ended ({status}); see {}", log_path.display());
        }
        if instance::is_ready(&settings.run_dir, child.id()) {
            say(format!(
                "node {} is Ready after {:.1} s (process {}, log {})",
                settings.node_name,
                started.elapsed().as_secs_f64(),
                child.id(),
                log_path.display()
            ));
            say(next_steps(settings));
            return Ok(ExitCode::SUCCESS);
        }
        if started.elapsed() > DETACH_TIMEOUT {
            say(format!(
                "windlass is running (process {}) but its node is not Ready after {} s; see {}",
                child.id(),
                DETACH_TIMEOUT.as_secs(),
                log_path.display()
            ));
            say(next_steps(settings));
            return Ok(ExitCode::from(crate::exit::DIFFERS));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
