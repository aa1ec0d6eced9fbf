//! Runs programs and waits for them.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use super::Error;

/// Longer than any restore and any save of the largest rulesets, and shorter than a loop may be silent: what takes so
/// long hangs, and is killed.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs commands, all with the same prefix (such as `ip netns exec NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    prefix: Vec<String>,
    limit: Duration,
}

impl Default for Runner {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Kills a process group when its time is up, on a separate thread.
struct Deadline {
    stop: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Deadline {
    fn start(group: Pid, limit: Duration) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let overdue = stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if overdue {
                let _ = killpg(group, Signal::SIGKILL);
            }
            overdue
        });
        Self { stop, thread }
    }

    /// Whether the time was up.
    fn stop(self) -> bool {
        drop(self.stop);
        self.thread.join().unwrap_or(false)
    }
}

impl Runner {
    /// A runner that puts `prefix` before every command.
    #[must_use]
    pub const fn new(prefix: Vec<String>) -> Self {
        Self { prefix, limit: LIMIT }
    }

    /// The same with another limit of time for each command.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
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
        let mut stdout = Vec::new();
        let (status, stderr) = self.watched(program, args, stdin, |from| from.read_to_end(&mut stdout).map(drop))?;
        Ok(Output { status, stdout, stderr })
    }

    /// Runs a program, whose output is read meanwhile, and kills it when it takes too long.
    fn watched(
        &self,
        program: &str,
        args: &[&str],
        stdin: Stdio,
        read: impl FnOnce(&mut ChildStdout) -> io::Result<()>,
    ) -> Result<(ExitStatus, Vec<u8>), Error> {
        let failed = |source| Error::Start { program: program.to_owned(), source };
        // Standard error is short; a file takes it without a second reader.
        let mut stderr_file = memfd_with("").map_err(failed)?;
        let mut command = self.command(program, args);
        command.stdin(stdin).stdout(Stdio::piped()).stderr(stderr_file.try_clone().map_err(failed)?);
        // A separate process group can be killed as a whole, whatever the program has started.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let deadline = Deadline::start(Pid::from_raw(child.id().cast_signed()), self.limit);
        let read = match child.stdout.take() {
            Some(mut stdout) => read(&mut stdout),
            None => Ok(()),
        };
        // It is not reaped before the deadline is off: its id is not that of another process.
        let pid = Pid::from_raw(child.id().cast_signed());
        while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let overdue = deadline.stop();
        let status = child.wait().map_err(failed)?;
        if overdue && !status.success() {
            let why = format!("it took longer than {} s and was killed", self.limit.as_secs());
            return Err(Error::Interrupted { command: format!("{program} {}", args.join(" ")), why });
        }
        read.map_err(failed)?;
        let mut stderr = Vec::new();
        stderr_file.rewind().and_then(|()| stderr_file.read_to_end(&mut stderr)).map_err(failed)?;
        Ok((status, stderr))
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
        let (status, stderr) = self.watched(program, args, Stdio::null(), |stdout| {
            let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line)? > 0 {
                each(&line);
                line.clear();
            }
            Ok(())
        })?;
        if status.success() {
            return Ok(());
        }
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

/// Why a program failed. That the lock was held follows from the status and the last line: lines about waiting for it
/// precede any other failure, too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let runner = Runner::default().with_limit(Duration::from_millis(200));
        let hanging = runner.run("sh", &["-c", "echo begun; sleep 1000; echo never"], "");
        assert!(matches!(&hanging, Err(Error::Interrupted { why, .. }) if why.contains("longer")), "{hanging:?}");
        let lines = runner.for_each_line("sh", &["-c", "sleep 1000"], |_| {});
        assert!(matches!(lines, Err(Error::Interrupted { .. })), "{lines:?}");
        let runner = Runner::default();
        assert_eq!(runner.run("cat", &[], "text").unwrap(), "text");
        let killed = runner.run("sh", &["-c", "kill -9 $$"], "").unwrap_err();
        assert_eq!(killed.outcome(), crate::plan::Outcome::Unknown);
    }

    /// What iptables before 1.8.8 prints while it waits comes before any other failure.
    #[test]
    fn a_lock_that_was_waited_for_is_not_why_a_rule_was_refused() {
        let waiting = "for i in 4 3 2 1; do echo \"Another app is currently holding the xtables lock; still ${i}s 0us time ahead to have a chance to grab the lock...\" >&2; done";
        let run = |end: &str| Runner::default().run("sh", &["-c", &format!("{waiting}; {end}")], "").unwrap_err();
        let refused = run("echo 'iptables-restore: line 7 failed' >&2; exit 1");
        assert!(
            matches!(&refused, Error::Failed { stderr, .. } if stderr == "iptables-restore: line 7 failed"),
            "{refused:?}"
        );
        let locked =
            run("echo 'Another app is currently holding the xtables lock. Stopped waiting after 5s.' >&2; exit 4");
        assert!(locked.is_locked(), "{locked:?}");
        let resources = run("echo 'line 3: RULE_APPEND failed (No such file or directory)' >&2; exit 4");
        assert!(!resources.is_locked(), "{resources:?}");
    }
}
