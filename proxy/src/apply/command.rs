//! Runs programs and waits for them.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus, Output, Stdio},
};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Error;

/// Runs commands, all with the same prefix (such as `ip netns exec NAME`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runner {
    prefix: Vec<String>,
}

impl Runner {
    /// A runner that puts `prefix` before every command.
    #[must_use]
    pub const fn new(prefix: Vec<String>) -> Self {
        Self { prefix }
    }

    /// Whether commands run in the network namespace of this process.
    #[must_use]
    pub const fn in_own_netns(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Reads a small file below `/proc` or `/sys` in the namespace of the commands.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(&self, path: &str) -> Result<String, String> {
        if self.in_own_netns() {
            return std::fs::read_to_string(path).map_err(|e| e.to_string());
        }
        self.run("cat", &[path], "").map_err(|e| e.to_string())
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut words = self.prefix.iter().map(String::as_str).chain([program]).chain(args.iter().copied());
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        // The PATH of a service does not always have the directories of the programs.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C");
        command
    }

    /// Runs a program to its end and returns its output, whatever its exit status.
    ///
    /// # Errors
    /// Only when it cannot be started or waited for.
    pub fn output(&self, program: &str, args: &[&str], input: &str) -> Result<Output, Error> {
        let failed = |source| Error::Start { program: program.to_owned(), source };
        let stdin = if input.is_empty() { Stdio::null() } else { memfd_with(input).map_err(failed)?.into() };
        self.command(program, args).stdin(stdin).output().map_err(failed)
    }

    /// Runs a program and returns its standard output.
    ///
    /// # Errors
    /// When it cannot be started, or ends with another status than 0.
    pub fn run(&self, program: &str, args: &[&str], input: &str) -> Result<String, Error> {
        let output = self.output(program, args, input)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failure(format!("{program} {}", args.join(" ")), output.status, &output.stderr))
    }

    /// Runs a program and calls `each` for each line of its output, which is never in memory as a whole.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn for_each_line(&self, program: &str, args: &[&str], mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let failed = |source| Error::Start { program: program.to_owned(), source };
        let mut command = self.command(program, args);
        // Standard error is short; a file takes it without a second reader.
        let mut stderr_file = memfd_with("").map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr_file.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        let mut read = || -> io::Result<()> {
            let Some(stdout) = child.stdout.take() else { return Ok(()) };
            let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line)? > 0 {
                each(&line);
                line.clear();
            }
            Ok(())
        };
        let read = read();
        let status = child.wait().map_err(failed)?;
        read.map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        let mut stderr = Vec::new();
        stderr_file.rewind().and_then(|()| stderr_file.read_to_end(&mut stderr)).map_err(failed)?;
        Err(failure(format!("{program} {}", args.join(" ")), status, &stderr))
    }
}

/// A file in memory with this content, positioned at its start: unlike a pipe it needs no writer thread.
fn memfd_with(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// The exit status of a program that lacked a resource, the xtables lock among them.
const RESOURCE_PROBLEM: i32 = 4;

/// Why a program failed. That the lock was held is said by the status and the last line: lines about waiting for it
/// come before any other failure, too.
pub(super) fn failure(command: String, status: ExitStatus, stderr: &[u8]) -> Error {
    let text = String::from_utf8_lossy(stderr);
    if let Some(signal) = status.signal() {
        return Error::Interrupted { command, why: format!("signal {signal}") };
    }
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    if status.code() == Some(RESOURCE_PROBLEM) && last.contains("xtables lock") {
        return Error::Locked { command, stderr: last.to_owned() };
    }
    Error::Failed { command, status: status.to_string(), stderr: summarize_stderr(&text) }
}

/// The first lines of a program's standard error, joined and cut, without those of its wait for the xtables lock.
fn summarize_stderr(text: &str) -> String {
    let mut out: String = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("Try `") && !l.starts_with('#'))
        .filter(|l| !l.contains("holding the xtables lock; still"))
        .take(4)
        .collect::<Vec<_>>()
        .join("; ");
    if let Some((end, _)) = out.char_indices().nth(600) {
        out.truncate(end);
    }
    out
}
