//! Programs of others that the node calls: CNI plugins, credential providers, mount helpers. There is one way to run
//! them, Go's, since that is what they are written for: the whole environment is theirs, what they do not read of their
//! input is no fault, and both of their outputs are read while they run.

use std::{
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

/// Limit of what is read of each output.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Limit of what is said of a program's standard error.
const MAX_MESSAGE_BYTES: usize = 256;
/// What systemd tells this process about its own unit, and nobody else.
const OF_THE_UNIT: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// One call of a program. When its future is dropped the program is killed.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
    input: Vec<u8>,
    timeout: Duration,
}

/// What a program has said, and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    /// All of standard error.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }

    /// Its last line, where programs say what went wrong.
    pub(crate) fn last_words(&self) -> String {
        let stderr = self.stderr();
        let last = stderr.lines().last().unwrap_or_default();
        last[..last.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
    }
}

impl Program {
    /// `path` is looked up in `PATH` unless it has a slash.
    pub(crate) fn new(path: impl AsRef<Path>, timeout: Duration) -> Self {
        let mut command = Command::new(path.as_ref());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        for name in OF_THE_UNIT {
            command.env_remove(name);
        }
        Self { command, input: Vec::new(), timeout }
    }

    pub(crate) fn args(mut self, all: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Self {
        self.command.args(all);
        self
    }

    /// Adds these variables to the environment.
    pub(crate) fn envs<'a>(mut self, all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.command.envs(all);
        self
    }

    /// What it reads; nothing by default.
    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it could not be run, or that it did not end in time.
    pub(crate) async fn run(self) -> Result<Output, String> {
        let Self { mut command, input, timeout } = self;
        let run = async {
            let mut child = command.spawn()?;
            let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let tell = async {
                if let Some(mut stdin) = stdin {
                    // A program may answer without reading its input.
                    let _ = stdin.write_all(&input).await;
                }
            };
            let ((), stdout, stderr) = tokio::join!(tell, read(stdout), read(stderr));
            io::Result::Ok(Output { status: child.wait().await?, stdout: stdout?, stderr: stderr? })
        };
        match tokio::time::timeout(timeout, run).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => Err(format!("it could not be run: {error}")),
            Err(_) => Err(format!("no answer within {} s", timeout.as_secs())),
        }
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Program {
        Program::new("sh", Duration::from_secs(60)).args(["-c", script])
    }

    #[tokio::test]
    async fn input_that_is_not_read_is_no_fault() {
        // More than a pipe takes: whoever waits for it to be read waits for ever, or gets EPIPE.
        let output = sh("echo done").input(vec![b'x'; 1 << 20]).run().await.unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"done\n");
        let output = sh("cat").input(vec![b'x'; 1 << 19]).run().await.unwrap();
        assert_eq!(output.stdout.len(), 1 << 19, "it writes while it is told");
    }

    #[tokio::test]
    async fn the_environment_is_whole_and_the_end_is_told() {
        let output = sh("echo $PATH $ADDED; echo first >&2; echo why >&2; exit 3").envs([("ADDED", "one")]);
        let output = output.run().await.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.last_words(), "why");
        let path = std::env::var("PATH").unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{path} one\n"));
        let silent = Program::new("sleep", Duration::from_millis(10)).args(["1000"]).run().await;
        assert_eq!(silent.unwrap_err(), "no answer within 0 s");
        let missing = Program::new("/nowhere/at-all", Duration::from_secs(1)).run().await;
        assert!(missing.unwrap_err().starts_with("it could not be run: No such file"));
    }
}
