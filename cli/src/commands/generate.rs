//! Shell completions and manual pages for packages, generated from the command line.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;

use super::say;

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Manual {
    /// The directory of the pages
    dir: PathBuf,
}

pub(super) fn completions(args: &Completions, command: &mut clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "windlass", &mut script);
    say(String::from_utf8(script).context("a completion script is text")?.trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn manual(args: &Manual, command: clap::Command) -> anyhow::Result<ExitCode> {
    let name = args.dir.display();
    std::fs::create_dir_all(&args.dir).with_context(|| format!("the directory {name} could not be created"))?;
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("the manual pages could not be written to {name}"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let dir = std::env::temp_dir().join(format!("windlass-manual-{}", std::process::id()));
        manual(&Manual { dir: dir.clone() }, Cli::command()).unwrap();
        let main = std::fs::read_to_string(dir.join("windlass.1")).unwrap();
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "windlass", &mut script);
        let script = String::from_utf8(script).unwrap();
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = command.get_name();
            let page = std::fs::read_to_string(dir.join(format!("windlass-{name}.1"))).unwrap();
            assert!(page.contains("NAME") && main.contains(&format!("windlass\\-{name}")), "{name}");
            assert!(
                script.contains(&format!("windlass__subcmd__{name}")) || script.contains(&format!("windlass__{name}")),
                "{name}"
            );
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
