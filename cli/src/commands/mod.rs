//! The commands, one file each.

mod agent;
mod bundle;
mod check;
mod config;
mod down;
mod generate;
mod join;
mod leave;
mod proxy;
mod rbac;
mod reload;
mod rules;
mod stats;
mod status;
mod table;
mod top;
mod up;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::{
    config::{Flags, LogFormat, Settings, kube_proxy::KubeProxy},
    exit, logging,
};

/// Windlass turns a machine that runs Docker into a Kubernetes node.
#[derive(Debug, clap::Parser)]
#[command(name = "windlass", version, disable_help_subcommand = true, args_override_self = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run a node with its own Kubernetes API: nothing else is needed
    Up(up::Args),
    /// Run a node of an existing cluster: pods and services, with a kubeconfig
    Agent(Box<agent::Args>),
    /// Make this machine a node of an existing cluster, with a token, as kubeadm join does
    Join(Box<join::Args>),
    /// Take this machine out of the cluster that it has joined
    Leave(leave::Args),
    /// Run the service proxy alone
    Proxy(Box<proxy::Args>),
    /// Stop the node: pods, rules and interfaces go, data stays
    Down(down::Args),
    /// Have the running node read its settings and manifests again
    Reload,
    /// Show what runs and what is wrong
    Status(status::Args),
    /// Show what the node, its pods and containers use, live
    Top(top::Args),
    /// Say whether this machine can be a node, and what is missing
    Check(check::Args),
    /// Put what helps to find a fault into one archive, without secrets
    Bundle(bundle::Args),
    /// Check, show or explain the settings
    Config(config::Args),
    /// Print a script that completes commands in a shell
    Completions(generate::Completions),
    /// Write the manual pages to a folder
    Manual(generate::Manual),
    /// Print the rights that nodes need in a cluster beside those that it gives every node, for kubectl
    Rbac,
    /// Show the service rules in the kernel, or those that manifests would give
    Rules(rules::Args),
}

/// Runs the command that was typed.
///
/// # Errors
/// What failed, with its cause; printed by the caller.
pub(crate) fn run(mut cli: Cli) -> anyhow::Result<ExitCode> {
    // These need no settings, or are there to say what is wrong with them.
    match &cli.command {
        Command::Config(args) => return config::run(args, &cli.flags, &Cli::command()),
        Command::Completions(args) => return generate::completions(args, &mut Cli::command()),
        Command::Manual(args) => return generate::manual(args, Cli::command()),
        Command::Rbac => return Ok(rbac::run()),
        _ => {}
    }
    match &cli.command {
        Command::Agent(args) => {
            (cli.flags.identity, cli.flags.membership) = (args.identity.clone(), args.membership.clone());
        }
        Command::Join(args) => cli.flags.membership = args.membership.clone(),
        _ => {}
    }
    let read = || -> anyhow::Result<(Settings, KubeProxy, bool)> {
        let (kube_proxy, is_file) = match &cli.command {
            Command::Proxy(args) => proxy::configuration(args, &cli.flags)?,
            _ => Default::default(),
        };
        let mut settings = Settings::read(&cli.flags, !is_file)?;
        if let Some(filter) = kube_proxy.log_filter() {
            filter.clone_into(&mut settings.log);
        }
        if kube_proxy.logging.format.as_deref() == Some("json") {
            settings.log_format = LogFormat::Json;
        }
        Ok((settings, kube_proxy, is_file))
    };
    let (settings, kube_proxy, is_file) = match read() {
        Ok(read) => read,
        Err(error) => {
            exit::report(&error);
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    // Those tell what they do themselves, unless somebody wants to hear more.
    let quiet = matches!(cli.command, Command::Join(_) | Command::Leave(_)) && settings.log == "info";
    logging::start(if quiet { "error" } else { &settings.log }, settings.log_format)?;
    let ended = match cli.command {
        Command::Up(args) => up::run(&args, &settings, &cli.flags),
        Command::Agent(_) => agent::run(&settings, &cli.flags),
        Command::Join(args) => join::run(&args, &settings, &cli.flags),
        Command::Leave(args) => leave::run(&args, &settings),
        Command::Proxy(args) => {
            let file = cli.flags.config.as_deref().filter(|_| is_file);
            proxy::run(&args, &settings, &kube_proxy, file, &cli.flags)
        }
        Command::Down(args) => down::run(&args, &settings),
        Command::Reload => reload::run(&settings),
        Command::Status(args) => status::run(&args, &settings),
        Command::Bundle(args) => bundle::run(&args, &settings),
        Command::Check(args) => check::run(&args, &settings),
        Command::Top(args) => top::run(&args, &settings),
        Command::Rules(args) => rules::run(&args, &settings),
        // Answered above.
        Command::Config(_) | Command::Completions(_) | Command::Manual(_) | Command::Rbac => Ok(ExitCode::SUCCESS),
    };
    logging::finish();
    ended
}

/// Says that root is needed before anything is touched.
fn require_root(command: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "{command} needs root: it makes containers, network interfaces and iptables rules; run it with sudo. Nothing was changed"
    );
    Ok(())
}

/// Files that the process may have open, where nobody has said so: connections and files of usage are among them. Shells
/// and service managers often begin with 1,024, and mean it for programs that wait by `select`.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const WANTED: u64 = 65_536;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = WANTED.min(hard);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// The runtime of every command: few threads, since each costs memory and the work is waiting.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4));
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(16)
        .thread_keep_alive(std::time::Duration::from_secs(5))
        .enable_all()
        .build()
        .map_err(|e| anyhow::anyhow!("the runtime could not be started: {e}"))
}

/// Waits for SIGTERM or SIGINT.
async fn asked_to_end() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    })
}

/// Tells the user of something before logging has begun.
fn warn(line: impl AsRef<str>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "warning: {}", line.as_ref());
}

/// Prints one line for the user on standard output; a closed pipe is not an error.
fn say(line: impl AsRef<str>) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", line.as_ref()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn commands_and_flags_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
