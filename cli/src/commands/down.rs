//! `windlass down`: stops the node and removes pods, rules and interfaces; the opposite of `up`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use super::{require_root, runtime, say};
use crate::{
    assemble,
    config::Settings,
    exit, instance,
    join::{join_dir::JoinDir, unit},
};

/// The timeout for the running process to exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove the data too: objects, certificates, the pause image, and volumes that are in the data directory
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass down")?;
    let instance = instance::stop_running(&settings.run_dir, STOP_TIMEOUT)?;
    // Everything is attempted; all problems are reported together.
    let mut problems = runtime()?.block_on(assemble::tear_down(settings, args.purge));
    if args.purge {
        if JoinDir::in_data_dir(&settings.data_dir).exists() {
            problems.extend(unit::remove_environment().err().map(|error| format!("{error:#}")));
        }
        problems.extend(remove_data(settings));
    }
    drop(instance);
    if args.purge {
        remove_tree(&settings.run_dir, &mut problems);
    }
    if args.purge
        && let Some(dir) = settings.local_path_dir.as_ref().filter(|dir| dir.exists())
    {
        say(format!("{} is of your own choice and stays, with the volumes in it", dir.display()));
    }
    if problems.is_empty() {
        say(if args.purge {
            "pods, rules, interfaces and data are removed"
        } else {
            "pods, rules and interfaces are removed; data stays (windlass down --purge removes it)"
        });
        return Ok(ExitCode::SUCCESS);
    }
    for problem in &problems {
        say(format!("left behind: {problem}"));
    }
    Ok(ExitCode::from(exit::FAILED))
}

/// Removes the data directory, if it is one of Windlass.
pub(super) fn remove_data_dir(settings: &Settings, problems: &mut Vec<String>) {
    // Only a directory recognized as Windlass's is removed: a mistyped --data-dir is not.
    if settings.data_dir.exists() && !assemble::is_data_dir(&settings.data_dir) {
        problems.push(format!(
            "{} does not look like a data directory of windlass, so it was not touched; remove it yourself if it is",
            settings.data_dir.display()
        ));
    } else {
        remove_tree(&settings.data_dir, problems);
    }
}

fn remove_data(settings: &Settings) -> Vec<String> {
    let mut problems = Vec::new();
    remove_data_dir(settings, &mut problems);
    if let Err(error) = std::fs::remove_file(&settings.admin_kubeconfig)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        problems.push(format!("{}: {error}", settings.admin_kubeconfig.display()));
    }
    // Empty directories are removed; those with the user's files stay.
    let parents: Vec<PathBuf> =
        [Some(settings.manifests_dir.as_path()), settings.admin_kubeconfig.parent(), settings.manifests_dir.parent()]
            .into_iter()
            .flatten()
            .map(Path::to_owned)
            .collect();
    for dir in parents {
        let _ = std::fs::remove_dir(dir);
    }
    problems
}

fn remove_tree(path: &Path, problems: &mut Vec<String>) {
    match std::fs::remove_dir_all(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => problems.push(format!("{}: {error}", path.display())),
    }
}
