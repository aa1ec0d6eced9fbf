//! The service that runs Windlass on a machine with systemd: which command it runs is a variable in a file that it reads.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::Context as _;
use windlass_kit::atomic_file;

const UNIT: &str = "windlass.service";
/// Read by the unit.
const ENVIRONMENT: &str = "/etc/windlass/windlass.env";
/// There where systemd is process 1.
const RUNS: &str = "/run/systemd/system";

fn systemctl(args: &[&str]) -> anyhow::Result<Output> {
    Command::new("systemctl")
        .args(args)
        .output()
        .with_context(|| format!("systemctl {} could not be run", args.join(" ")))
}

/// Runs systemctl; an error says what it said.
fn must(args: &[&str]) -> anyhow::Result<()> {
    let output = systemctl(args)?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "systemctl {} failed: {}", args.join(" "), said.trim());
    Ok(())
}

/// Whether systemd runs here and has the unit.
pub(crate) fn is_there() -> bool {
    Path::new(RUNS).exists() && systemctl(&["cat", UNIT]).is_ok_and(|output| output.status.success())
}

/// A word of a line that is split at blanks, where quotes hold words together.
fn word(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+<>*".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    // Inside of both kinds of quotes nothing needs an escape but these, which no setting has.
    let bad = |c: char| c.is_control() || "'\"\\$`".contains(c);
    (!text.chars().any(bad)).then(|| format!("'{text}'"))
}

/// The line that runs a command with arguments; `None` where one cannot stand in it.
pub(crate) fn line(args: &[String]) -> Option<String> {
    args.iter().map(|arg| word(arg)).collect::<Option<Vec<String>>>().map(|words| words.join(" "))
}

/// The text of the file that has the unit run a command.
pub(super) fn environment(args: &[String]) -> Option<String> {
    let line = line(args)?;
    Some(format!(
        "# What windlass.service runs; written by `windlass join`, removed by `windlass leave`.\nWINDLASS_ARGS=\"{line}\"\n"
    ))
}

/// Has the unit run a command, now and after each start of the machine; does not wait for it.
///
/// # Errors
/// When that cannot be written, or systemd refuses.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let text = environment(args)
        .context("one of the flags holds quotes, a dollar sign or a control character, which the unit's file cannot; set it in /etc/windlass/config.yaml instead")?;
    let file = Path::new(ENVIRONMENT);
    atomic_file::make_dir(file.parent().unwrap_or(Path::new("/etc")), 0o755)?;
    atomic_file::write_durable(file, text.as_bytes(), 0o644)
        .with_context(|| format!("{ENVIRONMENT} could not be written"))?;
    must(&["enable", UNIT])?;
    must(&["restart", "--no-block", UNIT])
}

/// Why the unit does not run, where it has failed.
pub(crate) fn failure() -> Option<String> {
    let output = systemctl(&["show", UNIT, "--property=ActiveState,Result,StatusText"]).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
    let failed = of("Result").is_some_and(|result| !result.is_empty() && result != "success");
    failed.then(|| format!("{UNIT} is {}, {}", of("ActiveState").unwrap_or_default(), of("Result").unwrap_or_default()))
}

/// Ends the unit, and has it not start again with the machine. Where it was never told to run a node, it is left alone.
///
/// # Errors
/// When systemd refuses.
pub(crate) fn stop() -> anyhow::Result<()> {
    if !Path::new(ENVIRONMENT).exists() {
        return Ok(());
    }
    if is_there() {
        must(&["disable", "--now", UNIT])?;
    }
    forget()
}

/// The unit has its usual command again from its next start on.
pub(crate) fn forget() -> anyhow::Result<()> {
    atomic_file::remove(Path::new(ENVIRONMENT)).with_context(|| format!("{ENVIRONMENT} could not be removed"))
}
