//! `windlass config`: checks a file, and prints the effective or all settings.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use serde_json::Value;

use super::say;
use crate::{
    config::{
        DEFAULT_FILE, Flags, Settings,
        file::{API_VERSION, KIND},
        kube_proxy,
        list::{Entry, entries},
        proxy::proxy_config,
    },
    exit,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print all problems of a file, with line and reason
    Check {
        /// The file [default: that of --config, or /etc/windlass/config.yaml]
        file: Option<PathBuf>,
    },
    /// Print the settings in effect: defaults, file and flags together
    Show,
    /// Print a file with all settings, explained and commented out
    Default,
}

pub(super) fn run(args: &Args, flags: &Flags) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Check { file } => check(file.clone().or_else(|| flags.config.clone())),
        Action::Show => {
            say(shown(&entries(&Settings::read(flags, true)?)));
            Ok(ExitCode::SUCCESS)
        }
        Action::Default => {
            say(default_file(&entries(&Settings::example())));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let file = file.unwrap_or_else(|| DEFAULT_FILE.into());
    let name = file.display();
    let text = std::fs::read_to_string(&file).with_context(|| format!("the configuration {name} could not be read"))?;
    if kube_proxy::is_kube_proxy(&text) {
        let (read, unknown) = kube_proxy::parse(&text).with_context(|| format!("{name} cannot be used"))?;
        let own = proxy_config(&Settings::example());
        if let Err(problems) = kube_proxy::config(own, Some(&read), &kube_proxy::Overrides::default()) {
            problems.iter().for_each(|problem| say(format!("{name}: {problem}")));
            return Ok(ExitCode::from(exit::USAGE));
        }
        let unknown: Vec<String> = unknown.iter().map(|key| format!("; {key} is unknown and ignored")).collect();
        say(format!("{name}: can be used by `windlass proxy`{}", unknown.concat()));
        return Ok(ExitCode::SUCCESS);
    }
    let problems = Settings::check(&text)?;
    for problem in &problems {
        match problem.line {
            Some(line) => say(format!("{name}:{line}: {}", problem.reason)),
            None => say(format!("{name}: {}", problem.reason)),
        }
    }
    if problems.is_empty() {
        say(format!("{name}: can be used"));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(exit::USAGE))
}

fn header() -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n")
}

/// The settings as YAML; values are JSON.
pub(super) fn shown(entries: &[Entry]) -> String {
    let mut out = header();
    for entry in entries.iter().filter(|e| !e.value.is_null()) {
        let _ = writeln!(out, "{}: {}", entry.name(), entry.value);
    }
    out.truncate(out.trim_end().len());
    out
}

fn default_file(entries: &[Entry]) -> String {
    let mut out = String::from(
        "# Settings of Windlass. Every line shows a default; take the `#` before a name away to set it.\n\
         # `windlass config check` says what is wrong, `windlass config show` what is in effect.\n",
    );
    out.push_str(&header());
    for entry in entries {
        let _ = writeln!(out, "\n# {}", entry.setting.help);
        let value = if entry.value == Value::Null { "\"\"".to_owned() } else { entry.value.to_string() };
        let _ = writeln!(out, "#{}: {value}", entry.name());
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::{
        commands::Cli,
        config::{SETTINGS, file},
    };

    /// Names and flags are each there once, and each flag is one of a command.
    #[test]
    fn every_setting_is_named_once_and_explained() {
        let help = Cli::command();
        let (mut names, mut flags) = (BTreeSet::new(), BTreeSet::new());
        for setting in SETTINGS {
            assert!(setting.name.is_empty() || names.insert(setting.name), "{}", setting.name);
            assert!(setting.help.len() > 10, "{} has no explanation", setting.name);
            let Some(long) = setting.long() else { continue };
            assert!(flags.insert(long), "--{long}");
            let has = |command: &clap::Command| command.get_arguments().any(|arg| arg.get_long() == Some(long));
            assert!(has(&help) || help.find_subcommand("agent").is_some_and(has), "--{long}");
        }
    }

    const INTRO: &str = "\
# Configuration

Written by `UPDATE_GOLDEN=1 cargo test --lib --bins reference`; do not edit.

Settings come from `/etc/windlass/config.yaml` (`--config FILE`) and from flags, which win. In a cluster that was joined the
cluster's own settings are a layer below the file. `windlass config default` prints a file with every setting explained,
`windlass config check` what is wrong with one, with line, reason and the nearest name, and `windlass config show` what is in
effect. A change counts after a restart, which takes seconds and touches no pod; what is logged also at `windlass reload`.

| setting | flag | default | meaning |
|---|---|---|---|
";

    /// Markdown of all settings.
    fn reference(entries: &[Entry]) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut out = INTRO.to_owned();
        for entry in entries {
            let words = entry.setting.help;
            let (meaning, default) = match words.rsplit_once(" [default: ") {
                Some((meaning, default)) => (meaning, default.trim_end_matches(']').to_owned()),
                None => (words, if entry.value.is_null() { String::new() } else { format!("`{}`", entry.value) }),
            };
            let flag = entry.setting.long().map_or_else(String::new, |flag| format!("`--{flag}`"));
            let _ = writeln!(out, "| `{}` | {flag} | {} | {} |", entry.name(), cell(&default), cell(meaning));
        }
        out
    }

    #[test]
    fn the_reference_is_as_the_code() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        let now = reference(&entries(&Settings::example()));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(file, &now).unwrap();
        }
        let before = std::fs::read_to_string(file).unwrap_or_default();
        assert!(before == now, "docs/configuration.md is not as the settings are; UPDATE_GOLDEN=1 writes it");
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let mut settings = Settings::example();
        settings.max_pods = 17;
        settings.kubelet.eviction_soft = [("memory.available".to_owned(), "2Gi".to_owned())].into();
        settings.kubelet.eviction_soft_grace_period = [("memory.available".to_owned(), "1m".to_owned())].into();
        let text = shown(&entries(&settings));
        assert_eq!(Settings::check(&text).unwrap(), vec![], "{text}");
        let mut again = Settings::example();
        file::parse(&text).unwrap().apply(&mut again);
        assert_eq!(shown(&entries(&again)), text);
        assert!(text.contains("maxPods: 17\n"), "{text}");
    }

    #[test]
    fn the_default_file_is_all_defaults_with_and_without_its_comments() {
        let text = default_file(&entries(&Settings::example()));
        assert_eq!(Settings::check(&text).unwrap(), vec![]);
        // Without what has no default.
        let unset = [
            "criSocket",
            "staticPodPath",
            "tokenAuthFile",
            "admissionControlConfigFile",
            "auditLogPath",
            "auditPolicyFile",
            "kubeconfig",
            "localPathDir",
            "bootstrapKubeconfig",
            "tlsCertFile",
            "tlsPrivateKeyFile",
            "clientCAFile",
            "proxyKubeconfig",
            "maxParallelImagePulls",
            "resolvConf",
            "imageCredentialProviderConfig",
            "imageCredentialProviderBinDir",
        ];
        let lines = text.lines().filter(|l| !unset.iter().any(|name| l.starts_with(&format!("#{name}:"))));
        let set: Vec<&str> =
            lines.map(|l| l.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(l)).collect();
        let set = set.join("\n");
        assert_eq!(Settings::check(&set).unwrap(), vec![], "{set}");
        let mut settings = Settings::example();
        file::parse(&set).unwrap().apply(&mut settings);
        assert_eq!(shown(&entries(&settings)), shown(&entries(&Settings::example())));
    }
}
