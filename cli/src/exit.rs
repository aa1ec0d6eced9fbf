//! Exit codes, and the only place that prints an error to the terminal.

use std::process::ExitCode;

/// The command was understood and failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub(crate) const USAGE: u8 = 2;
/// The inspected state is not as it should be (`windlass rules`, `windlass status`).
pub(crate) const DIFFERS: u8 = 3;
/// Another instance runs with the same directories. The unit lists this code: systemd does not restart it.
pub(crate) const RUNNING: u8 = 4;

/// Prints an error with its causes, once, and gives the exit code.
#[allow(clippy::print_stderr, reason = "errors go to standard error")]
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some errors already quote their source.
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    eprintln!("windlass: {text}");
    ExitCode::from(FAILED)
}
