//! Child processes: run to the end, or kept and ended by id.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Runs a program and gives its standard output.
///
/// # Errors
/// When it cannot be started or exits with another code than 0; standard error is quoted.
pub fn try_run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} could not be started"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "{program} {:?} ended with {}: {}{out}",
        args.iter().map(|a| a.as_ref().to_string_lossy().into_owned()).collect::<Vec<_>>(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(out)
}

/// Like [`try_run`], for steps that must work.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    match try_run(program, args) {
        Ok(out) => out,
        Err(error) => panic!("{error:#}"),
    }
}

/// A long-running child whose output goes to a file; ended when dropped.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: std::path::PathBuf,
}

impl Daemon {
    /// Starts `command` with both outputs appended to `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or the program not be started.
    pub fn start(name: &'static str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)), signal);
    }

    /// Sends a signal and waits for the end; kills it after 30 s.
    pub fn end(&mut self, signal: Signal) {
        if !self.runs() {
            return;
        }
        self.signal(signal);
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.runs() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("{} did not end within 30 s of {signal}; its log ends:\n{}", self.name, tail(&self.log()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} printed at the end:\n{}", self.name, tail(&self.log()));
        }
        if self.runs() {
            self.signal(Signal::SIGTERM);
            for _ in 0..500 {
                if !self.runs() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
