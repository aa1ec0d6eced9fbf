//! `windlass up`: the node with its own control plane.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{asked_to_end, raise_open_files, require_root, runtime, say};
use crate::{
    assemble,
    config::{Flags, Settings},
    instance::{self, Instance, Taken},
    join::place::Place,
    logging,
    reload::Reloader,
    systemd::{Kind, Manager},
};

/// Set for the process that `--detach` leaves behind.
const DETACHED: &str = "WINDLASS_DETACHED";
/// How long `--detach` waits for the node to be Ready before it says that it still is not.
const DETACH_PATIENCE: Duration = Duration::from_secs(120);

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
    let place = Place::below(&settings.data_dir);
    anyhow::ensure!(
        !place.is_there(),
        "this machine is a node of {}, which `windlass agent` runs; `windlass leave` ends that, or give this one its own --data-dir and --run-dir",
        place.cluster().unwrap_or_else(|| "another cluster".to_owned())
    );
    if args.detach && std::env::var_os(DETACHED).is_none() {
        return detach(settings);
    }
    let detached = std::env::var_os(DETACHED).map(|_| log_file(settings));
    if detached.is_some() {
        // A session of its own: a terminal that closes does not end the node.
        nix::unistd::setsid().context("the background process could not leave its terminal")?;
    }
    raise_open_files();
    let started = Instant::now();
    let instance = match Instance::take_to_start(&settings.run_dir)? {
        Taken::Ours(instance) => instance,
        Taken::Theirs(pid) => {
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            say(format!("windlass runs already (process {pid})"));
            say(next_steps(settings));
            return Ok(ExitCode::SUCCESS);
        }
    };
    runtime()?.block_on(async {
        let reloader = Reloader::new(flags, settings)?;
        let manager = Manager::start(if args.no_node { Kind::Api } else { Kind::Node });
        let mut node = assemble::standalone(settings, !args.no_node).await?;
        if let Some(vitals) = node.vitals() {
            manager.started(vitals);
        }
        let waiter = node.waiter();
        let ended = tokio::select! {
            signal = asked_to_end() => { tracing::info!(signal = signal.unwrap_or("a signal"), "ending: pods and traffic go on"); Ok(()) }
            failed = node.failed() => Err(failed),
            never = reloader.run(&manager) => match never {},
            never = logging::count_up() => match never {},
            never = logging::file::keep_short(detached.as_deref()) => match never {},
            never = announce(waiter, settings, &instance, &manager, started, !args.no_node) => match never {},
        };
        manager.ending();
        node.shutdown().await;
        ended
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Says when the node is Ready, once, and then waits for ever.
async fn announce(
    node: assemble::Waiter,
    settings: &Settings,
    instance: &Instance,
    manager: &Manager,
    started: Instant,
    with_node: bool,
) -> std::convert::Infallible {
    if with_node {
        node.ready(&settings.node_name).await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(node = settings.node_name, seconds, "the node is Ready");
        say(format!("node {} is Ready after {seconds:.1} s", settings.node_name));
    } else {
        say(format!("the API is served at https://{}", settings.api_listens()));
    }
    say(next_steps(settings));
    if let Err(error) = instance.tell_ready() {
        tracing::warn!(%error, folder = %settings.run_dir.display(), "the ready file could not be written; windlass up --detach will not return");
    }
    manager.ready();
    std::future::pending().await
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

/// The log of a node that was started in the background.
fn log_file(settings: &Settings) -> PathBuf {
    settings.run_dir.join("windlass.log")
}

/// Starts the same command in the background and waits until its node is Ready.
fn detach(settings: &Settings) -> anyhow::Result<ExitCode> {
    if let Taken::Theirs(pid) = Instance::take_to_start(&settings.run_dir)? {
        say(format!("windlass runs already (process {})", pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())));
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
        if started.elapsed() > DETACH_PATIENCE {
            say(format!(
                "windlass runs (process {}) but its node is not Ready after {} s; see {}",
                child.id(),
                DETACH_PATIENCE.as_secs(),
                log_path.display()
            ));
            say(next_steps(settings));
            return Ok(ExitCode::from(crate::exit::DIFFERS));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
