//! `windlass down`: stops the node and removes pods, rules and interfaces; the opposite of `up`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{purge, require_root, runtime, say};
use crate::{
    assemble,
    config::Settings,
    exit, instance,
    join::join_dir::JoinDir,
    service::{self, Service},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove the data too: objects, certificates, the pause image, and volumes that are in the data directory
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass down")?;
    // The lock is held to the end, so that nothing starts in what is being removed.
    let stopped = service::stop(&settings.run_dir)?;
    // Everything is attempted; all problems are reported together.
    let mut problems = runtime()?.block_on(assemble::tear_down(settings, args.purge));
    if args.purge {
        if JoinDir::in_data_dir(&settings.data_dir).exists() {
            problems.extend(service::forget_join().err().map(|error| format!("{error:#}")));
        }
        let disabled = stopped.service.as_ref().map(Service::disable).transpose();
        problems.extend(disabled.err().map(|error| format!("{error:#}")));
        remove_data(settings, &mut problems);
        let cleared = instance::clear_run_dir(&settings.run_dir, &stopped.instance);
        problems.extend(cleared.err().map(|error| format!("{}: {error}", settings.run_dir.display())));
    }
    drop(stopped.instance);
    if let Some(service) = &stopped.service {
        let unit = service.unit();
        say(if args.purge {
            format!("{unit} is stopped and disabled; `systemctl enable --now {unit}` starts it again")
        } else {
            format!("{unit} is stopped, and starts at the next boot or with `systemctl start {unit}`")
        });
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
    say("run the same command again to continue");
    Ok(ExitCode::from(exit::FAILED))
}

/// Removes what is outside of the data directory, and that last.
fn remove_data(settings: &Settings, problems: &mut Vec<String>) {
    if let Err(error) = windlass_kit::atomic_file::remove(&settings.admin_kubeconfig) {
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
    purge::remove_data_dir(&settings.data_dir, problems);
}
