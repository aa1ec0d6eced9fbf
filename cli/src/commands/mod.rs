//! The commands, one file each.

mod agent;
mod backup;
mod bundle;
mod check;
mod config;
mod down;
mod envtest;
mod generate;
mod join;
mod leave;
mod proxy;
mod purge;
mod rbac;
mod read_only_client;
mod reload;
mod rules;
mod run_node;
mod status;
mod table;
mod top;
mod up;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::{
    config::{Flags, LogFormat, Settings},
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
    /// Join this machine to an existing cluster with a token, like kubeadm join
    Join(Box<join::Args>),
    /// Remove this machine from the cluster that it has joined
    Leave(leave::Args),
    /// Run the service proxy alone
    Proxy(Box<proxy::Args>),
    /// Stop the node: remove pods, rules and interfaces; keep the data
    Down(down::Args),
    /// Reload settings and manifests of the running node
    Reload,
    /// Show the state of the node and unhealthy pods
    Status(status::Args),
    /// Show resource usage of the node, its pods and containers, live
    Top(top::Args),
    /// Check whether this machine can be a node
    Check(check::Args),
    /// Write an archive for troubleshooting, without secrets
    Bundle(bundle::Args),
    /// Write all objects and certificates of a cluster of its own to an archive, while it runs
    Backup(backup::BackupArgs),
    /// Make a data directory of such an archive
    Restore(backup::RestoreArgs),
    /// Check, show or explain the settings
    Config(config::Args),
    /// Print a shell completion script
    Completions(generate::Completions),
    /// Write the manual pages to a directory
    Manual(generate::Manual),
    /// Install the API server for tests with controller-runtime's envtest
    Envtest(envtest::Args),
    /// Print the RBAC manifest that nodes need in an existing cluster, for kubectl
    Rbac,
    /// Show the service rules in the kernel, or those for manifests
    Rules(rules::Args),
}

/// Runs the command.
pub(crate) fn run(mut cli: Cli) -> anyhow::Result<ExitCode> {
    // These need no settings, or check them.
    match &cli.command {
        Command::Config(args) => return config::run(args, &cli.flags),
        Command::Completions(args) => return generate::completions(args, &mut Cli::command()),
        Command::Manual(args) => return generate::manual(args, Cli::command()),
        Command::Rbac => return Ok(rbac::run()),
        Command::Envtest(args) => return envtest::run(args),
        _ => {}
    }
    match &cli.command {
        Command::Agent(args) => {
            (cli.flags.identity, cli.flags.cluster_access) = (args.identity.clone(), args.cluster_access.clone());
        }
        Command::Join(args) => cli.flags.cluster_access = args.cluster_access.clone(),
        _ => {}
    }
    let read = || -> anyhow::Result<(Settings, proxy::Given)> {
        let given = match &cli.command {
            Command::Proxy(args) => proxy::configuration(args, &cli.flags)?,
            _ => proxy::Given::default(),
        };
        let kube_proxy = given.settings()?;
        let mut settings = Settings::read(&cli.flags, !given.is_file())?;
        if let Some(filter) = kube_proxy.log_filter() {
            filter.clone_into(&mut settings.log);
        }
        if kube_proxy.logging.format.as_deref() == Some("json") {
            settings.log_format = LogFormat::Json;
        }
        Ok((settings, given))
    };
    let (settings, given) = match read() {
        Ok(read) => read,
        Err(error) => {
            exit::report(&error);
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    // These print their own progress, unless a log filter is set.
    let quiet = matches!(cli.command, Command::Join(_) | Command::Leave(_)) && settings.log == "info";
    logging::start(if quiet { "error" } else { &settings.log }, settings.log_format)?;
    let ended = match cli.command {
        Command::Up(args) => up::run(&args, &settings, &cli.flags),
        Command::Agent(_) => agent::run(&settings, &cli.flags),
        Command::Join(args) => join::run(&args, &settings, &cli.flags),
        Command::Leave(args) => leave::run(&args, &settings),
        Command::Proxy(args) => proxy::run(&args, &settings, &given, &cli.flags),
        Command::Down(args) => down::run(&args, &settings),
        Command::Reload => reload::run(&settings),
        Command::Status(args) => status::run(&args, &settings),
        Command::Bundle(args) => bundle::run(&args, &settings),
        Command::Backup(args) => backup::backup(&args, &settings),
        Command::Restore(args) => backup::restore(&args, &settings),
        Command::Check(args) => check::run(&args, &settings),
        Command::Top(args) => top::run(&args, &settings),
        Command::Rules(args) => rules::run(&args, &settings),
        // Handled above.
        Command::Config(_) | Command::Completions(_) | Command::Manual(_) | Command::Rbac | Command::Envtest(_) => {
            Ok(ExitCode::SUCCESS)
        }
    };
    logging::finish();
    ended
}

/// Fails before any change if not root.
fn require_root(command: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "{command} needs root, since it creates containers, network interfaces and iptables rules; run it with sudo. Nothing was changed"
    );
    Ok(())
}

/// Raises the soft limit of open files for connections and cgroup files. Shells and service managers often start with
/// 1,024, for programs that use `select`.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const OPEN_FILES: u64 = 65_536;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let target = OPEN_FILES.min(hard);
        if soft < target { setrlimit(Resource::RLIMIT_NOFILE, target, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "failed to raise the limit of open files");
    }
}

/// The runtime of every command: few threads, since each costs memory and the work is I/O. What a command opens begins
/// with it, so that the limit of open files is raised here, as kubelet does itself (`maxOpenFiles`).
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    raise_open_files();
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4));
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(windlass_kit::blocking::threads())
        // Besides tasks that always have more to send, such as long lists, new requests are seen within a few of their turns;
        // tokio's own 61 turns take milliseconds.
        .event_interval(5)
        .thread_keep_alive(std::time::Duration::from_secs(5))
        .enable_all()
        .build()
        .map_err(|e| anyhow::anyhow!("the runtime could not be started: {e}"))
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn termination_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    })
}

/// Prints a warning before logging has started.
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

    /// Whatever starts a command, such as a shell with 1,024 for programs that use `select`.
    #[test]
    fn a_command_raises_its_own_limit_of_open_files() {
        const LIMITED: &str = "WINDLASS_TEST_OF_LIMITED_FILES";
        let limits = || nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        if std::env::var_os(LIMITED).is_some() {
            assert_eq!(limits().0, 256);
            drop(super::runtime().unwrap());
            assert_eq!(limits(), (65_536.min(limits().1), limits().1));
            return;
        }
        // In a separate process, to leave the limit of this one alone.
        let mut inner = std::process::Command::new("sh");
        inner.args(["-c", r#"ulimit -Sn 256 && exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        inner.args(["--exact", "commands::tests::a_command_raises_its_own_limit_of_open_files"]).env(LIMITED, "1");
        let output = inner.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
