//! The programs that controller-runtime's envtest starts in place of kube-apiserver and etcd: the API server of `windlass up
//! --no-node` without controllers, by kube-apiserver's flags, and a stand-in that has its data directory, by etcd's.
//!
//! `flags` reads the command lines by the tables next to it, `options` makes a configuration of kube-apiserver's, `apiserver` and
//! `etcd` run. The scripts that envtest finds under upstream's names are written by `windlass envtest install`
//! (`commands/envtest.rs`). docs/envtest.md is for users.

mod apiserver;
mod data_directory;
mod etcd;
mod flags;
mod options;
mod plugins;
mod runtime_config;

use std::{ffi::OsString, process::ExitCode};

/// The programs, by the names that envtest looks for.
pub(crate) const SERVERS: [&str; 2] = ["kube-apiserver", "etcd"];

/// Runs one of the programs, if the command line is of `windlass envtest PROGRAM`. It comes before that of windlass is read, whose
/// own flags (`--data-dir`) are not meant.
pub(crate) fn run_server(mut line: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let _ = line.next();
    if line.next()? != "envtest" {
        return None;
    }
    let program = line.next()?;
    let run = if program == SERVERS[0] {
        apiserver::run
    } else if program == SERVERS[1] {
        etcd::run
    } else {
        return None;
    };
    let arguments: Vec<String> = line.map(|argument| argument.to_string_lossy().into_owned()).collect();
    Some(run(&arguments))
}

/// Prints to standard output, as a whole; a closed pipe is not an error.
fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Prints an error in the words of the program that is stood in for.
fn complain(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
