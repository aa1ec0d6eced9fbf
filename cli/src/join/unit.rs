//! The systemd unit that runs Windlass: its command line is a variable in an environment file.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::Context as _;
use windlass_kit::atomic_file;

const UNIT: &str = "windlass.service";
/// The unit's environment file.
const ENVIRONMENT: &str = "/etc/windlass/windlass.env";
/// Exists if systemd is pid 1.
const SYSTEMD_MARKER: &str = "/run/systemd/system";

fn systemctl(args: &[&str]) -> anyhow::Result<Output> {
    Command::new("systemctl")
        .args(args)
        .output()
        .with_context(|| format!("systemctl {} could not be run", args.join(" ")))
}

/// Runs systemctl; errors include its output.
fn run_systemctl(args: &[&str]) -> anyhow::Result<()> {
    let output = systemctl(args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "systemctl {} failed: {}", args.join(" "), stderr.trim());
    Ok(())
}

/// Whether systemd runs here and has the unit.
pub(crate) fn is_installed() -> bool {
    Path::new(SYSTEMD_MARKER).exists() && systemctl(&["cat", UNIT]).is_ok_and(|output| output.status.success())
}

/// Quotes a word of a command line that is split at blanks.
fn quote(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+<>*".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    // These need escapes within quotes; no setting has them.
    let bad = |c: char| c.is_control() || "'\"\\$`".contains(c);
    (!text.chars().any(bad)).then(|| format!("'{text}'"))
}

/// A command line of arguments; `None` if one cannot be quoted.
pub(crate) fn command_line(args: &[String]) -> Option<String> {
    args.iter().map(|arg| quote(arg)).collect::<Option<Vec<String>>>().map(|words| words.join(" "))
}

/// The environment file that has the unit run a command.
pub(super) fn environment(args: &[String]) -> Option<String> {
    let command_line = command_line(args)?;
    Some(format!(
        "# What windlass.service runs; written by `windlass join`, removed by `windlass leave`.\nWINDLASS_ARGS=\"{command_line}\"\n"
    ))
}

/// Enables and starts the unit with a command; does not wait for it.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let text = environment(args)
        .context("one of the flags holds quotes, a dollar sign or a control character, which the unit's file cannot; set it in /etc/windlass/config.yaml instead")?;
    let file = Path::new(ENVIRONMENT);
    atomic_file::make_dir(file.parent().unwrap_or(Path::new("/etc")), 0o755)?;
    atomic_file::write_durable(file, text.as_bytes(), 0o644)
        .with_context(|| format!("{ENVIRONMENT} could not be written"))?;
    run_systemctl(&["enable", UNIT])?;
    run_systemctl(&["restart", "--no-block", UNIT])
}

/// Why the unit failed, if it did.
pub(crate) fn failure() -> Option<String> {
    let output = systemctl(&["show", UNIT, "--property=ActiveState,Result,StatusText"]).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
    let failed = of("Result").is_some_and(|result| !result.is_empty() && result != "success");
    failed.then(|| format!("{UNIT} is {}, {}", of("ActiveState").unwrap_or_default(), of("Result").unwrap_or_default()))
}

/// Stops and disables the unit. Left alone if it was not set up by a join.
pub(crate) fn stop() -> anyhow::Result<()> {
    if !Path::new(ENVIRONMENT).exists() {
        return Ok(());
    }
    if is_installed() {
        run_systemctl(&["disable", "--now", UNIT])?;
    }
    remove_environment()
}

/// Restores the unit's default command from its next start on.
pub(crate) fn remove_environment() -> anyhow::Result<()> {
    atomic_file::remove(Path::new(ENVIRONMENT)).with_context(|| format!("{ENVIRONMENT} could not be removed"))
}
