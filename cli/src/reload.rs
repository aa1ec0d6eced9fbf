//! Reloads settings and manifests on SIGHUP. Reloadable settings are applied; others are named as needing a restart; an
//! invalid file changes nothing.

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_kit::atomic_file;

use crate::{
    config::{Flags, Settings, list::entries},
    logging,
    systemd::Notifier,
};

/// The file with the result of the last reload, for `windlass reload`.
pub(crate) const RESULT_FILE: &str = "reloaded";
/// Settings that are applied at run time.
const RELOADABLE: [&str; 2] = ["log", "logFormat"];

/// The names of changed settings.
#[derive(Debug, Default, PartialEq, Eq)]
struct SettingsDiff {
    applied: Vec<&'static str>,
    needs_restart: Vec<&'static str>,
}

/// Compares the current settings with new ones.
fn diff(current: &Settings, read: &Settings) -> SettingsDiff {
    let mut all = SettingsDiff::default();
    for (old, new) in entries(current).into_iter().zip(entries(read)).filter(|(old, new)| old.value != new.value) {
        if RELOADABLE.contains(&new.name()) { &mut all.applied } else { &mut all.needs_restart }.push(old.name());
    }
    all
}

/// Handles SIGHUP from its creation on.
#[derive(Debug)]
pub(crate) struct Reloader {
    hangups: Signal,
    flags: Flags,
    /// The settings that the process runs with.
    current: Settings,
    result_file: PathBuf,
}

impl Reloader {
    /// Must be created in a runtime, early: until then the signal kills the process.
    ///
    /// # Errors
    /// When the signal handler cannot be installed.
    pub(crate) fn new(flags: &Flags, settings: &Settings) -> std::io::Result<Self> {
        Ok(Self {
            hangups: signal(SignalKind::hangup())?,
            flags: flags.clone(),
            current: settings.clone(),
            result_file: settings.run_dir.join(RESULT_FILE),
        })
    }

    /// Reloads settings and manifests at each SIGHUP; never returns.
    pub(crate) async fn run(mut self, notifier: &Notifier) -> std::convert::Infallible {
        while self.hangups.recv().await.is_some() {
            notifier.reloading();
            let outcome = match self.reload() {
                Ok(outcome) => {
                    tracing::info!("{outcome}");
                    outcome
                }
                Err(error) => {
                    let refused = format!("refused, nothing was changed: {error:#}");
                    tracing::error!("the settings were read again: {refused}");
                    refused
                }
            };
            windlass_kit::manifests::rescan();
            notifier.reloaded();
            if let Err(error) = atomic_file::write(&self.result_file, format!("{outcome}\n").as_bytes(), 0o644) {
                tracing::warn!(%error, file = %self.result_file.display(), "failed to write the reload result for windlass reload");
            }
        }
        std::future::pending().await
    }

    /// Ignores the signal.
    pub(crate) async fn ignore(self) -> std::convert::Infallible {
        let _hangups = self.hangups;
        std::future::pending().await
    }

    fn reload(&mut self) -> anyhow::Result<String> {
        let read = Settings::read(&self.flags, true)?;
        let SettingsDiff { applied, needs_restart } = diff(&self.current, &read);
        logging::change(&read.log, read.log_format)?;
        (self.current.log, self.current.log_format) = (read.log, read.log_format);
        let mut outcome = match applied.as_slice() {
            [] => "settings and manifests were read again".to_owned(),
            names => format!("settings and manifests were read again; in force: {}", names.join(", ")),
        };
        if !needs_restart.is_empty() {
            outcome.push_str(&format!("; needs a restart: {}", needs_restart.join(", ")));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    #[test]
    fn reloadable_settings_are_applied_and_others_need_a_restart() {
        let old = Settings::example();
        assert_eq!(diff(&old, &old), SettingsDiff::default());
        let mut new = old.clone();
        new.log = "info,windlass_proxy=debug".to_owned();
        assert_eq!(diff(&old, &new), SettingsDiff { applied: vec!["log"], needs_restart: vec![] });
        new.log_format = LogFormat::Json;
        new.max_pods = 17;
        new.kubelet.image_gc_high_threshold_percent = 99;
        assert_eq!(
            diff(&old, &new),
            SettingsDiff {
                applied: vec!["log", "logFormat"],
                needs_restart: vec!["maxPods", "imageGCHighThresholdPercent"],
            }
        );
    }
}
