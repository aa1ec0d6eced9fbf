//! The harness of the end-to-end tests: a node in a network namespace of its own, with its own Docker Engine, image
//! registry and `windlass`, driven by the real kubectl.
//!
//! It does not touch the machine's own Docker, iptables or interfaces. Needs root.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test says what it saw")]

pub mod api_faults;
mod browser;
mod client;
pub mod cluster;
pub mod cri;
mod dice;
mod docker;
mod docker_proxy;
mod engine_data;
mod envtest;
mod faulty_iptables;
mod guard;
mod hanging_mount;
mod hollow_nodes;
mod kubectl;
mod left_over;
mod lent_node;
pub mod metrics_table;
mod process;
pub mod recording;
mod registry;
pub mod shared_dir;
mod skip;
pub mod sources;
mod storm;
mod testbed;
mod windlass;

pub use browser::Browser;
pub use client::{client, client_without_retries};
pub use dice::{Dice, seed};
pub use docker::RawDocker;
pub use docker_proxy::{DockerProxy, Fault, StreamFault};
pub use envtest::{Envtest, EnvtestAssets};
pub use faulty_iptables::{FaultyIptables, RestoreFault};
pub use hanging_mount::HangingMount;
pub use hollow_nodes::HollowNodes;
pub use kubectl::{Kubectl, Output};
pub use lent_node::LentNode;
pub use process::{Daemon, Usage, own_megabytes, page, resident_megabytes, run, try_run};
pub use registry::FailingRegistry;
pub use skip::{MAY_LACK, skip};
pub use storm::{Storm, Weather};
pub use testbed::{NODE_IP, Testbed};
pub use windlass::Windlass;

use std::time::{Duration, Instant};

/// Calls `check` until it returns a value, at most for `timeout`; panics with its last error.
///
/// # Panics
/// When `check` still fails after `timeout`: the test has failed.
#[track_caller]
pub fn eventually<T>(timeout: Duration, what: &str, mut check: impl FnMut() -> anyhow::Result<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        let complaint = match check() {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(Instant::now() < deadline, "not within {timeout:?}: {what}: {complaint:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A configuration file of windlass with these settings.
#[must_use]
pub fn configuration(settings: &str) -> String {
    format!("apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\n{settings}")
}

/// The timeout of steps that normally take a second or two, with room for a busy machine.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
