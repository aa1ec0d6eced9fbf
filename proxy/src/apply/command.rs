//! Runs a program, with a text on its standard input, and waits for it.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    process::{Command, Output, Stdio},
};

use nix::sys::memfd::{MFdFlags, memfd_create};

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

    /// Reads a small file of the kernel's, where the commands would run.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(&self, path: &str) -> Result<String, String> {
        if self.is_plain() {
            return std::fs::read_to_string(path).map_err(|e| e.to_string());
        }
        self.run("cat", &[path], "").map_err(|e| e.to_string())
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
        let stdin = if input.is_empty() { Stdio::null() } else { file_of(input).map_err(failed)?.into() };
        self.command(program, args).stdin(stdin).output().map_err(failed)
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

    /// Runs it and gives each line that it prints to `each`, so that a long text is never in memory as a whole.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn each_line(&self, program: &str, args: &[&str], mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let failed = |source| Error::Start { program: program.to_owned(), source };
        let mut command = self.command(program, args);
        // What it complains about is little; a file takes it without anybody reading meanwhile.
        let mut complaints = file_of("").map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(complaints.try_clone().map_err(failed)?);
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
        complaints.rewind().and_then(|()| complaints.read_to_end(&mut stderr)).map_err(failed)?;
        let command = format!("{program} {}", args.join(" "));
        Err(Error::Failed { command, status: status.to_string(), stderr: shorten(&stderr) })
    }
}

/// A file in memory, to be read from its start: nobody has to stand by and feed a pipe.
fn file_of(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
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
