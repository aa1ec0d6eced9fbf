//! Runs processes to their end, or in the background; reads their resource usage and output.

use std::{
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Runs a program and returns its standard output.
///
/// # Errors
/// When it cannot be started or exits with a code other than 0; standard error is quoted.
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

/// Like [`try_run`], but panics on failure.
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

/// The CPU time of a process, and whether it ran child processes.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Of the process's threads.
    pub cpu: Duration,
    /// Page faults of ended child processes: 0 if none were started.
    pub children: u64,
}

impl Usage {
    /// The usage of the process with this id.
    ///
    /// # Errors
    /// When there is no such process, or /proc cannot be read.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        // The CPU clock of the process also counts ended threads.
        let clock = nix::time::clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
        let used = nix::time::clock_gettime(clock)?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_whitespace().collect();
        // proc(5): cminflt is field 11, the ninth behind the name's bracket.
        Ok(Self { cpu: Duration::from(used), children: fields.get(8).context("cminflt")?.parse()? })
    }

    /// The usage since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), children: self.children - before.children }
    }
}

/// The resident memory of a process in megabytes.
///
/// # Errors
/// When there is no such process.
pub fn resident_megabytes(pid: u32) -> anyhow::Result<f64> {
    megabytes(pid, "VmRSS:")
}

/// What of it is the process's own, in megabytes: without pages of its program, of which the quick build has many.
///
/// # Errors
/// When there is no such process.
pub fn own_megabytes(pid: u32) -> anyhow::Result<f64> {
    megabytes(pid, "RssAnon:")
}

fn megabytes(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|l| l.starts_with(field)).with_context(|| format!("no {field}"))?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse::<f64>()? / 1024.0)
}

/// The body of a GET response from a server on this machine.
///
/// # Errors
/// When it does not answer, or with another status than 200.
pub fn page(port: u16, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{path} on port {port} was cut off"))?;
    anyhow::ensure!(head.split(' ').nth(1) == Some("200"), "{path} on port {port}: {head}");
    Ok(body.to_owned())
}

/// A long-running child that logs to a file; ended when dropped.
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
        let file = fs::OpenOptions::new().create(true).append(true).open(log)?;
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

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
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
