//! `windlass reload`: the running node reloads its settings and manifests.

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
    instance::{Instance, Lock},
    reload::RESULT_FILE,
};

/// The timeout of the reload.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn run(settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass reload")?;
    let Lock::Held(pid) = Instance::try_lock(&settings.run_dir)? else {
        anyhow::bail!("no windlass is running with the run-time directory {}", settings.run_dir.display());
    };
    let pid = pid.context("the process id of the running windlass could not be read")?;
    let result_file = settings.run_dir.join(RESULT_FILE);
    let _ = fs::remove_file(&result_file);
    kill(Pid::from_raw(pid), Signal::SIGHUP)
        .with_context(|| format!("the running windlass (process {pid}) could not be signalled"))?;
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    loop {
        // A complete line: it may be in the middle of being written.
        if let Some(outcome) = fs::read_to_string(&result_file).ok().filter(|outcome| outcome.ends_with('\n')) {
            say(outcome.trim_end());
            return Ok(if outcome.starts_with("refused") { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS });
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the running windlass (process {pid}) did not answer within {} s; see its log",
            RELOAD_TIMEOUT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
