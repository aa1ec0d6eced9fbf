//! Starts the proxy as a process, and reads its metrics and resource usage.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use windlass_tests::{Daemon, Testbed, Usage, Windlass, page, resident_megabytes};

/// A cold load of the largest cluster ends before.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) struct Proxy {
    daemon: Daemon,
}

/// The time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Proxy {
    pub(crate) fn start(testbed: &Testbed, windlass: &Windlass<'_>, path: &str, layout: &str) -> anyhow::Result<Self> {
        let mut command = windlass.command("proxy");
        command.arg("--kubeconfig").arg(windlass.kubeconfig()).args(["--rules-layout", layout]);
        command.env("PATH", path).env("WINDLASS_LOG", "warn");
        Ok(Self { daemon: Daemon::start("windlass proxy", &mut command, &testbed.dir().join("proxy.log"))? })
    }

    fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let page = page(10249, "/metrics")?;
        let line = page.lines().find(|l| l.starts_with(name) && l.contains("IPv4")).with_context(|| name.to_owned())?;
        Ok(line.rsplit(' ').next().context("a value")?.parse()?)
    }

    fn wait(
        &mut self,
        what: &str,
        pause: Duration,
        mut done: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        while !done(self).unwrap_or(false) {
            anyhow::ensure!(self.daemon.runs(), "the proxy ended: {}", self.daemon.log());
            anyhow::ensure!(started.elapsed() < DEFAULT_TIMEOUT, "{what}: {}", self.daemon.log());
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Waits until all rules are in the kernel.
    pub(crate) fn wait_for_full(&mut self) -> anyhow::Result<()> {
        self.wait("the first write", Duration::from_millis(20), |p| {
            Ok(p.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count")? >= 1.0)
        })
    }

    /// Writes so far.
    pub(crate) fn syncs(&self) -> anyhow::Result<u64> {
        Ok(self.metric("kubeproxy_sync_proxy_rules_duration_seconds_count")? as u64)
    }

    /// When rules were last in order, since 1970.
    fn written_at(&self) -> anyhow::Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds")?)?)
    }

    /// Waits until something was written after a moment; how long after. The proxy itself tells when, so that it
    /// need not be asked meanwhile, which would cost it as much as the write.
    pub(crate) fn written_after(&mut self, moment: Duration) -> anyhow::Result<Duration> {
        self.wait("a write", Duration::from_millis(100), |p| Ok(p.written_at()? > moment))?;
        Ok(self.written_at()? - moment)
    }

    /// Waits until nothing is written any more.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        let mut last = u64::MAX;
        loop {
            let now = self.syncs()?;
            if now == last {
                return Ok(());
            }
            last = now;
            std::thread::sleep(Duration::from_secs(4));
        }
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.daemon.pid())
    }

    /// In megabytes.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        resident_megabytes(self.daemon.pid())
    }

    /// Ends it once all rules are in the kernel.
    pub(crate) fn stop_when_full(mut self) -> anyhow::Result<()> {
        self.wait_for_full()?;
        self.stop();
        Ok(())
    }

    pub(crate) fn stop(mut self) {
        self.daemon.end(Signal::SIGTERM);
    }
}
