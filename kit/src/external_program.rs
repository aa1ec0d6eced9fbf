//! External programs that are called for one answer: credential plugins, CNI plugins, mount helpers. They run as under
//! Go, which is what they are written for: with the whole environment, and unread input is no error. Two limits are
//! stricter, since no user is watching: on the run time of the program and its descendants, and on the size of its
//! output.

use std::{
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

/// The most that a program may print as its answer.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// The most that is kept of its standard error: the end, where programs say what went wrong.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// The most of its last line that is repeated.
const MAX_MESSAGE_BYTES: usize = 256;
/// How long its standard error is read when it has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What systemd passes to this process about its own unit; child processes do not inherit it.
const OF_THE_UNIT: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Why a program gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// It could not be started.
    #[error("it could not be run: {0}")]
    Start(String),
    /// It took too long, and was ended.
    #[error("no answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// Its answer is unusable, and it was ended.
    #[error("{0}")]
    Output(String),
}

impl From<ProgramError> for String {
    fn from(error: ProgramError) -> Self {
        error.to_string()
    }
}

/// One call of a program. When its future is dropped the program is killed, with whatever it has started.
#[derive(Debug)]
pub struct Program {
    command: Command,
    input: Vec<u8>,
    timeout: Duration,
}

/// What a program has said, and how it ended.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// All of its output.
    pub stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    /// The end of standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }

    /// Its last line.
    #[must_use]
    pub fn last_words(&self) -> String {
        let stderr = self.stderr();
        let last = stderr.lines().last().unwrap_or_default();
        last[..last.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
    }
}

/// A process group that is killed when this is dropped, unless it is released.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Program {
    /// `path` is looked up in `PATH` unless it has a slash.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, timeout: Duration) -> Self {
        let mut command = Command::new(path.as_ref());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        for name in OF_THE_UNIT {
            command.env_remove(name);
        }
        Self { command, input: Vec::new(), timeout }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, all: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Self {
        self.command.args(all);
        self
    }

    /// Adds these variables to the environment.
    #[must_use]
    pub fn envs<'a>(mut self, all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.command.envs(all);
        self
    }

    /// What it reads; nothing by default.
    #[must_use]
    pub fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Runs it to its end. What it leaves behind then lives on; what it has started is ended with it otherwise.
    ///
    /// # Errors
    /// Why it could not be started, that it did not end in time, or that it printed too much.
    pub async fn run(self) -> Result<Output, ProgramError> {
        let Self { mut command, input, timeout } = self;
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let start = |e: io::Error| ProgramError::Start(e.to_string());
        let mut child = command.spawn().map_err(start)?;
        let mut group = Group::of(&child);
        let (stdin, stdout, mut stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut complaint = Vec::new();
        let answer = async {
            let tell = async {
                if let Some(mut stdin) = stdin {
                    // A program may answer without reading its input.
                    let _ = stdin.write_all(&input).await;
                }
                Ok(())
            };
            let ((), output) = tokio::try_join!(tell, all_of(stdout))?;
            let status = child.wait().await.map_err(|e| ProgramError::Output(e.to_string()))?;
            Ok::<_, ProgramError>((output, status))
        };
        // A program that it leaves behind may hold its standard error for ever; that of its output is waited for, as in Go.
        let answer = async {
            tokio::select! {
                answer = answer => answer,
                never = complaints(stderr.as_mut(), &mut complaint) => match never {},
            }
        };
        let answer = tokio::time::timeout(timeout, answer).await;
        let (stdout, status) = answer.map_err(|_| ProgramError::Deadline(timeout))??;
        group.0 = None;
        // What it said last may still be on its way to us.
        if !status.success() {
            let _ = tokio::time::timeout(LAST_WORDS, complaints(stderr.as_mut(), &mut complaint)).await;
        }
        Ok(Output { status, stdout, stderr: complaint })
    }
}

/// All output, or that it is too much.
async fn all_of(from: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ProgramError> {
    let mut output = Vec::new();
    if let Some(from) = from {
        let read = from.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await;
        read.map_err(|e| ProgramError::Output(e.to_string()))?;
    }
    if output.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(ProgramError::Output(format!("it printed more than {MAX_OUTPUT_BYTES} bytes")));
    }
    Ok(output)
}

/// Reads what a program complains of, so that it never waits for a reader; the end is kept. At the end of it nothing is left
/// to do but to wait.
async fn complaints(from: Option<&mut (impl AsyncRead + Unpin)>, kept: &mut Vec<u8>) -> std::convert::Infallible {
    let mut buffer = [0; 4096];
    if let Some(from) = from {
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            kept.extend_from_slice(&buffer[..read]);
            let excess = kept.len().saturating_sub(MAX_ERROR_BYTES);
            kept.drain(..excess);
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Program {
        Program::new("sh", Duration::from_secs(60)).args(["-c", script])
    }

    #[tokio::test]
    async fn input_that_is_not_read_is_no_fault() {
        // More than fits into a pipe: a writer that waited for it to be read would block for ever, or get EPIPE.
        let output = sh("echo done").input(vec![b'x'; 1 << 20]).run().await.unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"done\n");
        let output = sh("cat").input(vec![b'x'; 1 << 19]).run().await.unwrap();
        assert_eq!(output.stdout.len(), 1 << 19, "it writes while it is told");
        assert_eq!(sh("cat").run().await.unwrap().stdout, b"", "nothing is its input");
    }

    #[tokio::test]
    async fn the_environment_is_whole_and_the_end_is_told() {
        let output = sh("echo $PATH $ADDED; echo first >&2; echo why >&2; exit 3").envs([("ADDED", "one")]);
        let output = output.run().await.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.last_words().as_str(), output.stderr().as_str()), ("why", "first\nwhy"));
        let path = std::env::var("PATH").unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{path} one\n"));
        let silent = Program::new("sleep", Duration::from_millis(10)).args(["1000"]).run().await;
        assert_eq!(silent.unwrap_err().to_string(), "no answer within 0 s");
        let missing = Program::new("/nowhere/at-all", Duration::from_secs(1)).run().await;
        assert!(missing.unwrap_err().to_string().starts_with("it could not be run: No such file"));
    }

    #[tokio::test]
    async fn too_much_output_is_refused_and_too_many_complaints_are_read() {
        for script in ["yes | head -c 3000000", "yes"] {
            assert_eq!(
                sh(script).run().await.unwrap_err().to_string(),
                "it printed more than 1048576 bytes",
                "{script}"
            );
        }
        let loud = sh("yes no | head -c 3000000 >&2; echo the end >&2; exit 1").run().await.unwrap();
        assert_eq!((loud.last_words().as_str(), loud.stderr.len()), ("the end", MAX_ERROR_BYTES));
    }

    /// What systemd says to this process alone.
    #[tokio::test]
    async fn the_units_variables_are_hidden() {
        let output = sh("env").envs([("OWN", "1")]).run().await.unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("OWN=1"));
        let command = Program::new("true", Duration::ZERO).command;
        let hidden: Vec<_> = command.as_std().get_envs().filter(|(_, value)| value.is_none()).map(|(n, _)| n).collect();
        assert!(OF_THE_UNIT.iter().all(|name| hidden.contains(&std::ffi::OsStr::new(name))), "{hidden:?}");
    }

    /// Whether a process has ended.
    fn is_over(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    }

    #[tokio::test]
    async fn what_it_has_started_is_ended_with_it_and_what_it_leaves_lives_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 </dev/null >/dev/null & echo $! >{}; ", file.display());
        let pid = || std::fs::read_to_string(&file).unwrap().trim().to_owned();
        // It holds its parent's standard error open, which is not waited for.
        let output = sh(&script).run().await.unwrap();
        assert!(output.status.success() && !is_over(&pid()));
        nix::sys::signal::kill(Pid::from_raw(pid().parse().unwrap()), Signal::SIGKILL).unwrap();
        let hangs = Program::new("sh", Duration::from_millis(500)).args(["-c", &format!("{script} wait")]);
        assert!(matches!(hangs.run().await, Err(ProgramError::Deadline(_))));
        for _ in 0..200 {
            if is_over(&pid()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("its child {} lives on", pid());
    }
}
