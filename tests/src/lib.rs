//! What the end-to-end tests share: a node in a network namespace of its own, with its own Docker
//! Engine, image registry and `windlass`, driven by the real kubectl.
//!
//! Nothing here touches the machine's own Docker, iptables or interfaces. Root is needed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test says what it saw")]

pub mod bench;
mod browser;
pub mod cluster;
mod docker;
mod guard;
mod kubectl;
mod mirror;
mod process;
mod registry;
pub mod sharing;
mod windlass;
mod world;

pub use browser::Browser;
pub use docker::RawDocker;
pub use kubectl::{Kubectl, Output};
pub use mirror::Mirror;
pub use process::{Daemon, Usage, page, resident_megabytes, run, try_run};
pub use registry::FailingRegistry;
pub use windlass::Windlass;
pub use world::{NODE_IP, World};

use std::time::{Duration, Instant};

/// Asks `check` until it gives a value, at most `patience`; panics with its last complaint.
///
/// # Panics
/// When `check` still fails after `patience`: the test has failed.
#[track_caller]
pub fn eventually<T>(patience: Duration, what: &str, mut check: impl FnMut() -> anyhow::Result<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        let complaint = match check() {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}: {complaint:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A configuration file of windlass with these settings.
#[must_use]
pub fn configuration(settings: &str) -> String {
    format!("apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\n{settings}")
}

/// How long a step that normally takes a second or two may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
