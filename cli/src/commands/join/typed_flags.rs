//! The flags given to `join` that are the node's: its unit, or whoever follows the printed instructions, starts it with
//! them.

use std::path::Path;

use anyhow::Context as _;
use clap::{ArgMatches, Args as _, CommandFactory as _, parser::ValueSource};

use super::super::Cli;
use crate::config::{ClusterAccessFlags, Flags};

/// The settings flags on the command line, with which the node will run.
pub(super) fn settings_flags() -> anyhow::Result<Vec<String>> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().try_get_matches_from(std::env::args_os())?;
    let settings = ClusterAccessFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
    let found = matches.subcommand_matches("join").context("the command line could not be read again")?;
    typed(&settings, found)
}

/// The arguments of `known` on the command line of `matches`.
fn typed(known: &clap::Command, matches: &ArgMatches) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for arg in known.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(long) = arg.get_long() else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let names = arg.get_value_names().unwrap_or_default();
        let is_path = names.iter().any(|name| matches!(name.as_str(), "FILE" | "DIR" | "PATH" | "SOCKET"));
        for value in matches.get_raw(id).into_iter().flatten() {
            // The unit has another working directory.
            let path = (is_path && !value.is_empty()).then(|| std::path::absolute(value)).transpose()?;
            let value = path.as_deref().map_or(value, Path::as_os_str);
            let value = value.to_str().with_context(|| format!("the value of --{long} is no text"))?;
            all.push(format!("--{long}={value}"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn typed_of(line: &str) -> Vec<String> {
        let matches = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
        let known = ClusterAccessFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
        typed(&known, matches.subcommand_matches("join").unwrap()).unwrap()
    }

    #[test]
    fn what_the_node_runs_with_is_what_was_typed_without_what_joins() {
        let line = [
            "windlass --node-ip 192.0.2.7 join 192.0.2.1:6443 --token abcdef.0123456789abcdef",
            "--discovery-token-unsafe-skip-ca-verification --node-name n --cni-bin-dir /a --cni-bin-dir /b",
            "--no-proxy --server https://a:1 --tls-cert-file c",
            "--eviction-hard memory.available<1Gi,nodefs.available<5%",
        ];
        let typed = typed_of(&line.join(" "));
        let file = std::path::absolute("c").unwrap();
        let file = format!("--tls-cert-file={}", file.display());
        let mut sorted = typed.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                "--cni-bin-dir=/a",
                "--cni-bin-dir=/b",
                "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
                "--no-proxy=true",
                "--node-ip=192.0.2.7",
                "--node-name=n",
                "--server=https://a:1",
                file.as_str(),
            ]
        );
        // And the agent accepts it.
        let again = [vec!["windlass".to_owned(), "agent".to_owned()], typed].concat();
        Cli::try_parse_from(again).unwrap();
    }
}
