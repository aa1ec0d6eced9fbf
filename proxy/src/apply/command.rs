//! Runs a program, with a text on its standard input, and waits for it.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use super::Error;

/// Makes commands; all run behind the same prefix (such as `ip netns exec NAME`).
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

    /// Whether commands run in the namespaces of this process.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.prefix.is_empty()
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut words = self.prefix.iter().map(String::as_str).chain([program]).chain(args.iter().copied());
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        // The programs live where PATH of a service does not always look.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C");
        command
    }

    /// Runs it to its end whatever its exit status.
    ///
    /// # Errors
    /// Only when it cannot be started or waited for.
    pub fn output(&self, program: &str, args: &[&str], input: &str) -> Result<Output, Error> {
        let failed = |source| Error::Start { program: program.to_owned(), source };
        let mut child = self
            .command(program, args)
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        std::thread::scope(|scope| {
            // A child that ends early closes the pipe: its exit status tells more than EPIPE.
            scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
            child.wait_with_output().map_err(failed)
        })
    }

    /// Runs it and returns what it printed.
    ///
    /// # Errors
    /// When it cannot be started, or ends with another status than 0.
    pub fn run(&self, program: &str, args: &[&str], input: &str) -> Result<String, Error> {
        let output = self.output(program, args, input)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Failed {
            command: format!("{program} {}", args.join(" ")),
            status: output.status.to_string(),
            stderr: shorten(&output.stderr),
        })
    }
}

/// The first lines of what a program complained about.
pub(super) fn shorten(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut out: String = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("Try `") && !l.starts_with('#'))
        .take(4)
        .collect::<Vec<_>>()
        .join("; ");
    if let Some((end, _)) = out.char_indices().nth(600) {
        out.truncate(end);
    }
    out
}
