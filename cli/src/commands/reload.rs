//! `windlass reload`: the running node reads its settings and manifests again.

use std::{
    fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{require_root, say};
use crate::{
    config::Settings,
    exit,
    instance::{Instance, Taken},
    reload::ANSWER,
};

/// How long the node has to answer.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass reload")?;
    let Taken::Theirs(pid) = Instance::take(&settings.run_dir)? else {
        anyhow::bail!("no windlass runs with the run-time folder {}", settings.run_dir.display());
    };
    let pid = pid.context("the process id of the running windlass could not be read")?;
    let answer = settings.run_dir.join(ANSWER);
    let _ = fs::remove_file(&answer);
    kill(Pid::from_raw(pid), Signal::SIGHUP)
        .with_context(|| format!("the running windlass (process {pid}) could not be told"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A whole line: it may be written just now.
        if let Some(told) = fs::read_to_string(&answer).ok().filter(|told| told.ends_with('\n')) {
            say(told.trim_end());
            return Ok(if told.starts_with("refused") { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS });
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the running windlass (process {pid}) did not answer within {} s; look at its log",
            PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
