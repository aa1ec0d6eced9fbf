//! SIGHUP: settings and manifests are read again. What can change while it runs does; the rest is named; a file that
//! cannot be used changes nothing.

use std::{fs, path::PathBuf};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config::{Flags, Settings, list::entries},
    logging,
    systemd::Manager,
};

/// What the last time came to, for `windlass reload`.
pub(crate) const ANSWER: &str = "reloaded";
/// Settings that take effect while it runs.
const LIVE: [&str; 2] = ["log", "logFormat"];

/// Names of settings that differ.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    applied: Vec<&'static str>,
    needs_restart: Vec<&'static str>,
}

/// What differs between the settings that are in force and those that were read.
fn difference(in_force: &Settings, read: &Settings) -> Difference {
    let mut all = Difference::default();
    for (old, new) in entries(in_force).into_iter().zip(entries(read)).filter(|(old, new)| old.value != new.value) {
        if LIVE.contains(&new.name) { &mut all.applied } else { &mut all.needs_restart }.push(old.name);
    }
    all
}

/// Waits for SIGHUP from its making on.
#[derive(Debug)]
pub(crate) struct Reloader {
    hangups: Signal,
    flags: Flags,
    /// Those that the process runs with.
    in_force: Settings,
    answer: PathBuf,
}

impl Reloader {
    /// Must be called inside a runtime, before anything takes long: until then the signal ends the process.
    ///
    /// # Errors
    /// When the signal cannot be listened for.
    pub(crate) fn new(flags: &Flags, settings: &Settings) -> std::io::Result<Self> {
        Ok(Self {
            hangups: signal(SignalKind::hangup())?,
            flags: flags.clone(),
            in_force: settings.clone(),
            answer: settings.run_dir.join(ANSWER),
        })
    }

    /// Reads settings and manifests again each time that it is asked to.
    pub(crate) async fn run(mut self, manager: &Manager) -> std::convert::Infallible {
        while self.hangups.recv().await.is_some() {
            manager.reloading();
            let told = match self.reload() {
                Ok(told) => {
                    tracing::info!("{told}");
                    told
                }
                Err(error) => {
                    let refused = format!("refused, nothing was changed: {error:#}");
                    tracing::error!("the settings were read again: {refused}");
                    refused
                }
            };
            windlass_kit::manifests::rescan();
            manager.reloaded();
            if let Err(error) = fs::write(&self.answer, format!("{told}\n")) {
                tracing::warn!(%error, file = %self.answer.display(), "windlass reload is not told what came of it");
            }
        }
        std::future::pending().await
    }

    /// Keeps the signal from ending the process.
    pub(crate) async fn ignore(self) -> std::convert::Infallible {
        let _hangups = self.hangups;
        std::future::pending().await
    }

    fn reload(&mut self) -> anyhow::Result<String> {
        let read = Settings::read(&self.flags, true)?;
        let Difference { applied, needs_restart } = difference(&self.in_force, &read);
        logging::change(&read.log, read.log_format)?;
        (self.in_force.log, self.in_force.log_format) = (read.log, read.log_format);
        let mut told = match applied.as_slice() {
            [] => "settings and manifests were read again".to_owned(),
            names => format!("settings and manifests were read again; in force: {}", names.join(", ")),
        };
        if !needs_restart.is_empty() {
            told.push_str(&format!("; needs a restart: {}", needs_restart.join(", ")));
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    #[test]
    fn what_changes_at_once_and_what_does_not() {
        let old = Settings::example();
        assert_eq!(difference(&old, &old), Difference::default());
        let mut new = old.clone();
        new.log = "info,windlass_proxy=debug".to_owned();
        assert_eq!(difference(&old, &new), Difference { applied: vec!["log"], needs_restart: vec![] });
        new.log_format = LogFormat::Json;
        new.max_pods = 17;
        new.keeping.image_gc_high_threshold_percent = 99;
        assert_eq!(
            difference(&old, &new),
            Difference {
                applied: vec!["log", "logFormat"],
                needs_restart: vec!["maxPods", "imageGCHighThresholdPercent"],
            }
        );
    }
}
